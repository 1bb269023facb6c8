#include "lockstep/device/aligned_tensor.h"

#include <cstdint>

#include <torch/types.h>

namespace lockstep {

torch::Tensor aligned(const torch::Tensor& tensor) {
  constexpr std::uintptr_t kAlignment = 64;
  if (tensor.layout() != torch::kStrided || tensor.is_nested()) return tensor;
  const auto address =
      reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr());
  if (address % kAlignment == 0 && tensor.is_non_overlapping_and_dense()) {
    return tensor;
  }
  return tensor.clone(torch::MemoryFormat::Preserve);
}

}  // namespace lockstep
