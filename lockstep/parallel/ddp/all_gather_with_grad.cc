#include "lockstep/parallel/ddp/all_gather_with_grad.h"

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <torch/autograd.h>

#include "lockstep/base/error.h"
#include "lockstep/parallel/ddp/saved_world.h"

namespace lockstep {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

namespace {

constexpr int64_t kMaxDims = 64;  // dimensions of a tensor in LibTorch

// Layout of the description of a tensor that the ranks exchange. The sizes come
// last.
enum : int64_t { kType, kRequiresGrad, kDims, kSizes };

Tensor description_of(const Tensor& tensor) {
  Tensor description = torch::zeros({kSizes + kMaxDims}, torch::kInt64);
  auto* numbers = description.data_ptr<int64_t>();
  numbers[kType] = static_cast<int64_t>(tensor.scalar_type());
  numbers[kRequiresGrad] =
      torch::GradMode::is_enabled() && tensor.requires_grad() ? 1 : 0;
  numbers[kDims] = tensor.dim();
  std::copy(tensor.sizes().begin(), tensor.sizes().end(), numbers + kSizes);
  return description;
}

std::string in_words(const Tensor& description) {
  const auto* numbers = description.const_data_ptr<int64_t>();
  return fmt::format(
      "{} {} that {}",
      c10::toString(static_cast<c10::ScalarType>(numbers[kType])),
      c10::str(at::IntArrayRef(numbers + kSizes,
                               static_cast<size_t>(numbers[kDims]))),
      numbers[kRequiresGrad] != 0 ? "requires grad" : "requires no grad");
}

/// Throws on all ranks if the tensors of two ranks don't match.
void check_same(const ProcessGroup& world, const Tensor& tensor) {
  const Tensor own = description_of(tensor);
  const std::vector<Tensor> all = world.all_gather(own).result();
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (torch::equal(all[rank], all[0])) continue;
    throw ParallelError(
        "ddp",
        {.code = ErrorCode::kCallsDiffer,
         .what = fmt::format("all_gather_with_grad(): the tensors of ranks 0 "
                             "and {} differ",
                             rank),
         .expected = fmt::format("{}, as on rank 0", in_words(all[0])),
         .got = in_words(all[rank]),
         .fix = "give each rank a batch of the same size; leave out a last one "
                "that is smaller (drop_last)"});
  }
}

/// Returns each rank's part of a gathered tensor.
std::vector<Tensor> parts_of(const Tensor& whole, int ranks) {
  const int64_t size = whole.size(0) / ranks;
  std::vector<Tensor> parts;
  for (int rank = 0; rank < ranks; ++rank) {
    parts.push_back(whole.narrow(0, rank * size, size));
  }
  return parts;
}

struct Gathered : torch::autograd::Function<Gathered> {
  static Tensor forward(AutogradContext* context, const Tensor& tensor,
                        const ProcessGroup& world) {
    ddp::save_world(*context, world);
    std::vector<int64_t> sizes = tensor.sizes().vec();
    sizes[0] *= world.size();
    const Tensor whole = torch::empty(sizes, tensor.options());
    std::vector<Tensor> parts = parts_of(whole, world.size());
    world.all_gather(parts, tensor.contiguous());
    return whole;
  }

  static variable_list backward(AutogradContext* context,
                                const variable_list& gradients) {
    ddp::check_no_double_backward(
        "ddp", "compute a gradient penalty on the tensors of this rank");
    const ProcessGroup world = ddp::saved_world(*context);
    const std::vector<Tensor> parts =
        parts_of(gradients[0].contiguous(), world.size());
    Tensor own = torch::empty_like(parts[0]);
    world.reduce_scatter(own, parts);
    return {own, Tensor()};
  }
};

}  // namespace

Tensor all_gather_with_grad(const ProcessGroup& world, const Tensor& tensor) {
  if (!tensor.defined() || tensor.dim() == 0) {
    throw InvalidArgument(
        "ddp", {.code = ErrorCode::kBadTensor,
                .what = "all_gather_with_grad() can't take this tensor",
                .expected = "a tensor with samples along dimension 0",
                .got = tensor.defined() ? "a tensor without dimensions"
                                        : "an undefined tensor",
                .fix = "for a number, pass tensor.unsqueeze(0)"});
  }
  if (world.size() == 1) return tensor;
  check_same(world, tensor);
  return Gathered::apply(tensor, world);
}

}  // namespace lockstep
