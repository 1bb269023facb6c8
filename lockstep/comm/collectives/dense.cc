#include "lockstep/comm/collectives/dense.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/terminal.h"

namespace lockstep {
namespace {

void check(const at::Tensor& tensor) {
  if (tensor.defined() && tensor.is_cpu() &&
      tensor.layout() == torch::kStrided) {
    return;
  }
  throw CommError(
      {.code = ErrorCode::kBadTensor,
       .what = "shm and gloo work on dense CPU tensors",
       .got = tensor.defined()
                  ? fmt::format("a {} {} tensor", c10::str(tensor.device()),
                                c10::str(tensor.layout()))
                  : "an undefined tensor",
       .fix = "use --backend nccl for GPUs; make sparse tensors dense"});
}

}  // namespace

at::Tensor dense(const at::Tensor& tensor) {
  check(tensor);
  if (tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg()) {
    return tensor;
  }
  return tensor.resolve_conj().resolve_neg().contiguous();
}

std::span<std::byte> bytes_of(const at::Tensor& dense) {
  return {static_cast<std::byte*>(dense.data_ptr()), dense.nbytes()};
}

at::Tensor byte_view(const at::Tensor& dense) {
  return torch::from_blob(
      dense.data_ptr(), {static_cast<int64_t>(dense.nbytes())},
      [keep = dense](void*) {}, torch::TensorOptions().dtype(torch::kUInt8));
}

void check_parts(const std::vector<at::Tensor>& parts, const at::Tensor& like,
                 int size, const char* operation) {
  bool is_good = parts.size() == static_cast<size_t>(size);
  for (const auto& part : parts) {
    check(part);
    is_good = is_good && part.numel() == like.numel() &&
              part.scalar_type() == like.scalar_type();
  }
  if (is_good) return;
  throw CommError(
      {.code = ErrorCode::kBadTensor,
       .what =
           fmt::format("{} got tensors that don't fit each other", operation),
       .expected = fmt::format("{} of {} x {}", size, like.numel(),
                               c10::toString(like.scalar_type())),
       .got = fmt::format(
           "{}{}", counted(static_cast<int64_t>(parts.size()), "tensor"),
           parts.empty() ? std::string()
                         : fmt::format(", the first {} x {}", parts[0].numel(),
                                       c10::toString(parts[0].scalar_type()))),
       .fix = "give one tensor for each rank, all of one size and type"});
}

}  // namespace lockstep
