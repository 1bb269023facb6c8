#include "lockstep/comm/shared_memory.h"

#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/device/tensor_in_memory.h"
#include "lockstep/transport/transport.h"

namespace lockstep {
namespace {

// The address of this function marks the storage of a shared tensor.
// is_shared_tensor() looks for it.
void release(void* memory) { delete static_cast<SharedMemory*>(memory); }

}  // namespace

SharedMemory::SharedMemory(std::shared_ptr<const Ranks> ranks)
    : ranks_(std::move(ranks)) {}

int SharedMemory::ranks() const { return static_cast<int>(ranks_->size()); }

std::shared_ptr<const void> SharedMemory::owner_of(int rank) const {
  return ranks_->at(static_cast<size_t>(rank)).owner;
}

std::span<std::byte> SharedMemory::of(int rank) const {
  return ranks_->at(static_cast<size_t>(rank)).bytes;
}

std::optional<size_t> SharedMemory::offset_of(
    int rank, const torch::Tensor& tensor) const {
  const auto* data = static_cast<const std::byte*>(tensor.const_data_ptr());
  return ranks_->at(static_cast<size_t>(rank))
      .offset_of({data, tensor.nbytes()});
}

torch::Tensor SharedMemory::tensor(int rank, size_t offset,
                                   at::IntArrayRef sizes,
                                   at::ScalarType type) const {
  const std::span<std::byte> memory = of(rank);
  const auto bytes = static_cast<size_t>(c10::multiply_integers(sizes)) *
                     c10::elementSize(type);
  if (offset % 64 != 0 || offset > memory.size() ||
      bytes > memory.size() - offset) {
    throw InvalidArgument(
        "comm",
        {.code = ErrorCode::kOutOfMemory,
         .what = "a tensor does not fit in shared memory",
         .expected = fmt::format("an offset that is a multiple of 64 and ends "
                                 "within {} bytes",
                                 memory.size()),
         .got = fmt::format("{} bytes at {}", bytes, offset),
         .fix = "ask for more bytes"});
  }
  return torch::from_blob(
      memory.data() + offset, sizes, [keep = ranks_](void*) {},
      torch::TensorOptions().dtype(type));
}

torch::Tensor shared_tensor(const SharedMemory& memory, int rank, size_t offset,
                            const torch::Tensor& like) {
  std::byte* data = memory.of(rank).data() + offset;
  return tensor_in_memory(
      {data, new SharedMemory(memory), &release, torch::kCPU}, like);
}

bool is_shared_tensor(const torch::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() &&
         tensor.storage().data_ptr().get_deleter() == &release;
}

void unshare(torch::Tensor& tensor) {
  if (!is_shared_tensor(tensor)) return;
  const c10::InferenceMode normal(false);
  torch::NoGradGuard no_grad;
  tensor.set_data(tensor.detach().clone(torch::MemoryFormat::Preserve));
}

}  // namespace lockstep
