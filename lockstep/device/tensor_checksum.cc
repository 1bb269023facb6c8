#include "lockstep/device/tensor_checksum.h"

#include <cstddef>
#include <span>

namespace lockstep {

void add_elements(Checksum& sum, const torch::Tensor& tensor) {
  if (!tensor.defined()) {
    sum.add("undefined");
    return;
  }
  torch::Tensor bytes = tensor.detach().to(torch::kCPU);
  if (bytes.layout() != torch::kStrided) bytes = bytes.to_dense();
  bytes = bytes.resolve_conj().resolve_neg();
  if (!bytes.is_non_overlapping_and_dense()) bytes = bytes.contiguous();
  sum.add(std::span(static_cast<const std::byte*>(bytes.const_data_ptr()),
                    bytes.nbytes()));
}

std::string checksum_of(const torch::Tensor& tensor) {
  if (!tensor.defined()) return "";
  Checksum sum;
  const bool is_strided = tensor.layout() == torch::kStrided;
  add_elements(sum, is_strided ? tensor.detach().contiguous() : tensor);
  return sum.hex();
}

}  // namespace lockstep
