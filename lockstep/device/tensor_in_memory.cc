#include "lockstep/device/tensor_in_memory.h"

#include <utility>

namespace lockstep {

torch::Tensor tensor_in_memory(at::DataPtr memory, const torch::Tensor& like) {
  const torch::Device device = memory.device();
  c10::Storage storage(c10::Storage::use_byte_size_t(), like.nbytes(),
                       std::move(memory), /*allocator=*/nullptr,
                       /*resizable=*/false);
  const torch::NoGradGuard no_grad;
  torch::Tensor tensor =
      torch::empty({0}, torch::dtype(like.scalar_type()).device(device));
  tensor.set_(std::move(storage), 0, like.sizes(), like.strides());
  return tensor;
}

}  // namespace lockstep
