#include "lockstep/comm/collectives/shared_tensor.h"

namespace lockstep {
namespace {

// Its address marks the storage: whoever holds a tensor can tell.
void release(void* memory) { delete static_cast<SharedMemory*>(memory); }

}  // namespace

torch::Tensor shared_tensor(const SharedMemory& memory, int rank, size_t offset,
                            const torch::Tensor& like) {
  std::byte* data = memory.of(rank).data() + offset;
  c10::Storage storage(
      c10::Storage::use_byte_size_t(), like.nbytes(),
      at::DataPtr(data, new SharedMemory(memory), &release, torch::kCPU),
      /*allocator=*/nullptr, /*resizable=*/false);
  torch::NoGradGuard no_grad;
  torch::Tensor tensor =
      torch::empty({0}, torch::dtype(like.scalar_type()).device(torch::kCPU));
  tensor.set_(std::move(storage), 0, like.sizes(), like.strides());
  return tensor;
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
