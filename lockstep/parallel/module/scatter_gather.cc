#include "lockstep/parallel/module/scatter_gather.h"

#include <fmt/format.h>

#include "lockstep/base/chunk.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/terminal.h"
#include "lockstep/parallel/module/nested.h"

namespace lockstep {

using c10::IValue;
using torch::Tensor;

namespace {

/// Throws unless `tensor` can be split along `dim`.
void check_can_split(const Tensor& tensor, const std::string& path,
                     int64_t dim) {
  if (tensor.is_nested()) {
    throw InvalidArgument(
        "scatter",
        {.code = ErrorCode::kBadBatch,
         .what = fmt::format("input{} is a nested tensor, which can't be split "
                             "along a dimension",
                             path),
         .expected = "a dense tensor",
         .fix = "pad it, t.to_padded_tensor(0), and pass the lengths of its "
                "samples as another tensor"});
  }
  if (tensor.layout() != torch::kStrided) {
    throw InvalidArgument(
        "scatter",
        {.code = ErrorCode::kBadBatch,
         .what = fmt::format("input{} can't be split along a dimension", path),
         .expected = "a dense tensor",
         .got = "the layout " + c10::str(tensor.layout()),
         .fix = "pass t.to_dense()"});
  }
  if (tensor.dim() == 0) {
    throw InvalidArgument(
        "scatter",
        {.code = ErrorCode::kBadBatch,
         .what = fmt::format("input{} is a 0-dimensional tensor, which has "
                             "no batch to split",
                             path),
         .fix = "pass it as a number or as lockstep::shared(t), which every "
                "replica gets whole, or unsqueeze it"});
  }
  if (dim < -tensor.dim() || dim >= tensor.dim()) {
    throw InvalidArgument(
        "scatter", {.code = ErrorCode::kBadBatch,
                    .what = fmt::format("input{} has no dimension {} to "
                                        "split along",
                                        path, dim),
                    .expected = "at least " +
                                counted(dim < 0 ? -dim : dim + 1, "dimension"),
                    .got = "shape " + c10::str(tensor.sizes()),
                    .fix = "set the option dim to the batch dimension"});
  }
}

/// Returns the part of `value` for device `chunk`.
IValue chunk_of(const IValue& value, int64_t chunk, const Device& device,
                int64_t devices, int64_t dim) {
  return map_tensors(
      value,
      [&](const Tensor& tensor) {
        const int64_t n = tensor.size(dim);
        const int64_t size = chunk_sizes(n, devices)[0];
        const int64_t begin = chunk * size;
        return to_device(tensor.narrow(dim, begin, std::min(size, n - begin)),
                         device);
      },
      [&](const Tensor& tensor) { return to_device(tensor, device); });
}

}  // namespace

std::optional<int64_t> batch_size_of(const IValue& batch, int64_t dim) {
  std::optional<int64_t> size;
  Tensor first;
  std::string first_path;
  const auto check = [&](const Tensor& tensor, const std::string& path) {
    check_can_split(tensor, path, dim);
    const int64_t n = tensor.size(dim);
    if (!size) {
      size = n;
      first = tensor;
      first_path = path;
    } else if (n != *size) {
      throw InvalidArgument(
          "scatter",
          {.code = ErrorCode::kBadBatch,
           .what = fmt::format("the tensors of a batch, which are split along "
                               "dimension {}, have different sizes there",
                               dim),
           .expected = fmt::format("{}, as input{} of shape {} has", *size,
                                   first_path, c10::str(first.sizes())),
           .got = fmt::format("{} for input{} of shape {}", n, path,
                              c10::str(tensor.sizes())),
           .fix = "give the inputs and the target, which counts as the last "
                  "input, the same number of samples; pass a tensor that every "
                  "shard needs whole as lockstep::shared(t)"});
    }
  };
  for_each_tensor(batch, check, [](const Tensor&, const std::string&) {});
  return size;
}

std::vector<IValue> scatter(const IValue& batch,
                            std::span<const Device> devices, int64_t dim) {
  const auto k = static_cast<int64_t>(devices.size());
  const auto size = batch_size_of(batch, dim);
  // Without a tensor, every replica gets the same values, as in PyTorch.
  const int64_t chunks =
      size ? static_cast<int64_t>(chunk_sizes(*size, k).size()) : k;
  std::vector<IValue> parts;
  for (int64_t c = 0; c < chunks; ++c) {
    parts.push_back(
        chunk_of(batch, c, devices[static_cast<size_t>(c)], k, dim));
  }
  return parts;
}

namespace {

[[noreturn]] void fail_gather(const std::string& path, std::string what,
                              std::string expected, std::string got,
                              std::string fix) {
  throw ParallelError("gather",
                      {.code = ErrorCode::kBadBatch,
                       .what = "output" + path + " " + std::move(what),
                       .expected = std::move(expected),
                       .got = std::move(got),
                       .fix = std::move(fix)});
}

void check_same_shape(const std::vector<Tensor>& tensors, int64_t dim,
                      const std::string& path) {
  const auto& first = tensors[0];
  const int64_t batch_dim = dim < 0 ? dim + first.dim() : dim;
  if (batch_dim < 0 || batch_dim >= first.dim()) {
    fail_gather(path, fmt::format("has no dimension {} to gather along", dim),
                "", "shape " + c10::str(first.sizes()), "");
  }
  for (size_t r = 1; r < tensors.size(); ++r) {
    bool same = tensors[r].dim() == first.dim();
    for (int64_t d = 0; same && d < first.dim(); ++d) {
      same = d == batch_dim || tensors[r].size(d) == first.size(d);
    }
    if (same) continue;
    fail_gather(path, fmt::format("of replica {} can't be gathered", r),
                fmt::format("size {} but for dimension {}",
                            c10::str(first.sizes()), batch_dim),
                c10::str(tensors[r].sizes()),
                "pad the outputs to one shape inside forward");
  }
}

Tensor gather_tensors(std::vector<Tensor> tensors, const Device& device,
                      int64_t dim, const std::string& path) {
  for (size_t r = 0; r < tensors.size(); ++r) {
    if (!tensors[r].is_nested()) continue;
    fail_gather(path, fmt::format("of replica {} is a nested tensor", r),
                "a dense tensor", "",
                "pad it in forward(), y.to_padded_tensor(0)");
  }
  if (tensors[0].dim() == 0) {
    warn_once("gather-scalars", "parallel",
              "asked to gather along dimension 0, but the outputs are "
              "scalars; they are unsqueezed and a vector is returned");
    for (Tensor& tensor : tensors) {
      if (tensor.dim() != 0) {
        fail_gather(path, "is a scalar on some replicas only", "", "", "");
      }
      tensor = to_device(tensor.unsqueeze(0), device);
    }
    return tensors.size() == 1 ? tensors[0] : torch::cat(tensors, 0);
  }
  check_same_shape(tensors, dim, path);
  for (Tensor& tensor : tensors) tensor = to_device(tensor, device);
  return tensors.size() == 1 ? tensors[0] : torch::cat(tensors, dim);
}

IValue gather_values(std::span<const IValue> outputs, const Device& device,
                     int64_t dim, const std::string& path) {
  const IValue& first = outputs[0];
  for (const IValue& output : outputs) {
    if (output.tagKind() != first.tagKind()) {
      fail_gather(path, "differs in type between replicas", first.tagKind(),
                  output.tagKind(), "");
    }
  }
  if (first.isNone()) return first;
  if (first.isTensor()) {
    std::vector<Tensor> tensors;
    for (const IValue& output : outputs) tensors.push_back(output.toTensor());
    const bool is_defined = tensors[0].defined();
    for (const Tensor& tensor : tensors) {
      if (tensor.defined() == is_defined) continue;
      fail_gather(path, "is an undefined tensor on some replicas only", "", "",
                  "return a tensor on all of them, or on none");
    }
    if (!is_defined) return first;
    return gather_tensors(std::move(tensors), device, dim, path);
  }
  if (!is_nested(first)) {
    fail_gather(path, "can't be gathered",
                "tensors, or tuples, lists and dicts of tensors",
                first.tagKind(), "return it as a tensor");
  }
  std::vector<std::vector<Child>> children;
  for (const IValue& output : outputs) {
    children.push_back(children_of(output));
    if (children.back().size() != children[0].size()) {
      fail_gather(path,
                  first.isGenericDict()
                      ? "differs between replicas: all dicts must have the "
                        "same number of keys"
                      : "differs in length between replicas",
                  fmt::format("{}", children[0].size()),
                  fmt::format("{}", children.back().size()), "");
    }
  }
  std::vector<IValue> gathered;
  for (size_t c = 0; c < children[0].size(); ++c) {
    std::vector<IValue> parts;
    for (size_t r = 0; r < children.size(); ++r) {
      if (children[r][c].label != children[0][c].label) {
        fail_gather(path, "differs between replicas",
                    "key " + children[0][c].label,
                    "key " + children[r][c].label, "");
      }
      parts.push_back(children[r][c].value);
    }
    gathered.push_back(
        gather_values(parts, device, dim, path + children[0][c].label));
  }
  return rebuild(first, std::move(gathered));
}

}  // namespace

IValue gather(std::span<const IValue> outputs, const Device& output_device,
              int64_t dim) {
  if (outputs.empty()) {
    throw InvalidArgument("gather", {.code = ErrorCode::kBadBatch,
                                     .what = "there are no outputs to gather"});
  }
  return gather_values(outputs, output_device, dim, "");
}

}  // namespace lockstep
