#include "lockstep/parallel/module/scatter_gather.h"

#include <fmt/format.h>

#include "lockstep/base/chunk.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/parallel/module/nested.h"

namespace lockstep {

using c10::IValue;
using torch::Tensor;

namespace {

[[noreturn]] void fail_scatter(std::string what, std::string expected,
                               std::string got, std::string fix) {
  throw InvalidArgument("scatter", {.code = ErrorCode::kBadBatch,
                                    .what = std::move(what),
                                    .expected = std::move(expected),
                                    .got = std::move(got),
                                    .fix = std::move(fix)});
}

/// Throws unless `tensor` can be split along `dim`.
void check_can_split(const Tensor& tensor, const std::string& path,
                     int64_t dim) {
  if (tensor.is_nested()) {
    fail_scatter(fmt::format("input{} is a nested tensor, which can't be split "
                             "along a dimension",
                             path),
                 "a dense tensor", "",
                 "pad it, t.to_padded_tensor(0), and pass the lengths of its "
                 "samples as another tensor");
  }
  if (tensor.layout() != torch::kStrided) {
    fail_scatter(fmt::format("input{} can't be split along a dimension", path),
                 "a dense tensor", "the layout " + c10::str(tensor.layout()),
                 "pass t.to_dense()");
  }
  if (tensor.dim() == 0) {
    fail_scatter(fmt::format("input{} is a 0-dimensional tensor, which has "
                             "no batch to split",
                             path),
                 "", "",
                 "pass it as a number or as lockstep::shared(t), which every "
                 "replica gets whole, or unsqueeze it");
  }
  if (dim < -tensor.dim() || dim >= tensor.dim()) {
    fail_scatter(
        fmt::format("input{} has no dimension {} to split along", path, dim),
        "at least " + counted(dim < 0 ? -dim : dim + 1, "dimension"),
        "shape " + c10::str(tensor.sizes()),
        "set the option dim to the batch dimension");
  }
}

}  // namespace

std::optional<int64_t> batch_size_of(const IValue& batch, int64_t dim) {
  std::optional<TensorAtPath> first;
  for (const TensorAtPath& at : tensors_in(batch)) {
    if (at.is_shared) continue;
    check_can_split(at.tensor, at.path, dim);
    if (!first) first = at;
    const int64_t size = at.tensor.size(dim);
    const int64_t expected = first->tensor.size(dim);
    if (size == expected) continue;
    fail_scatter(
        fmt::format("the tensors of a batch, which are split along dimension "
                    "{}, have different sizes there",
                    dim),
        fmt::format("{}, as input{} of shape {} has", expected, first->path,
                    c10::str(first->tensor.sizes())),
        fmt::format("{} for input{} of shape {}", size, at.path,
                    c10::str(at.tensor.sizes())),
        "give the inputs and the target, which counts as the last input, the "
        "same number of samples; pass a tensor that every shard needs whole as "
        "lockstep::shared(t)");
  }
  if (!first) return std::nullopt;
  return first->tensor.size(dim);
}

std::vector<IValue> detail::cut(const IValue& batch,
                                std::span<const int64_t> sizes,
                                std::span<const Device> devices, int64_t dim) {
  std::vector<IValue> parts;
  int64_t begin = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    parts.push_back(map_tensors(
        batch,
        [&](const Tensor& tensor) {
          return to_device(tensor.narrow(dim, begin, sizes[i]), devices[i]);
        },
        [&](const Tensor& tensor) { return to_device(tensor, devices[i]); }));
    begin += sizes[i];
  }
  return parts;
}

std::vector<IValue> scatter(const IValue& batch,
                            std::span<const Device> devices, int64_t dim) {
  const auto size = batch_size_of(batch, dim);
  // Without a tensor, every replica gets the same values, as in PyTorch.
  return detail::cut(
      batch,
      size ? chunk_sizes(*size, static_cast<int64_t>(devices.size()))
           : std::vector<int64_t>(devices.size()),
      devices, dim);
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
