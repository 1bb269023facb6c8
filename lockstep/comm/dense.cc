#include "lockstep/comm/dense.h"

#include <c10/core/InferenceMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace lockstep {

at::Tensor dense(const at::Tensor& tensor) {
  if (!tensor.is_cpu()) return dense(tensor.cpu());
  if (tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg()) {
    return tensor;
  }
  return tensor.resolve_conj().resolve_neg().contiguous();
}

void wait_for_stream_of(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return;
  const c10::Device device = tensor.device();
  c10::impl::VirtualGuardImpl(device.type()).getStream(device).synchronize();
}

void copy_to(const at::Tensor& destination, const at::Tensor& source) {
  // LibTorch lets only code in inference mode write such a tensor.
  const c10::InferenceMode mode(destination.is_inference() ||
                                c10::InferenceMode::is_enabled());
  destination.copy_(source);
}

void copy_and_wait(const at::Tensor& destination, const at::Tensor& source) {
  copy_to(destination, source);
  wait_for_stream_of(destination);
}

std::span<std::byte> bytes_of_dense(const at::Tensor& dense) {
  return {static_cast<std::byte*>(dense.data_ptr()), dense.nbytes()};
}

}  // namespace lockstep
