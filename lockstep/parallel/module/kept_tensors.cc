#include "lockstep/parallel/module/kept_tensors.h"

#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/variable.h>

#include "lockstep/device/tensor_checksum.h"

namespace lockstep {

using torch::Tensor;

KeptTensors::KeptTensors(std::vector<Tensor> tensors) {
  const torch::NoGradGuard no_grad;
  for (Tensor& tensor : tensors) {
    Tensor values = tensor.clone();
    // A tensor that was made in inference mode has no version counter.
    const int64_t version = tensor.is_inference() ? 0 : tensor._version();
    kept_.push_back({std::move(tensor), std::move(values), version});
  }
}

void KeptTensors::restore() const {
  const torch::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  for (const auto& [tensor, values, version] : kept_) {
    if (checksum_of(tensor) != checksum_of(values)) tensor.copy_(values);
    if (tensor.is_inference()) continue;
    c10::VariableVersion counter =
        torch::autograd::impl::version_counter(tensor);  // shared, not copied
    counter.set_version(version);
  }
}

KeptTensors kept_buffers(const ModuleHandle& module) {
  std::vector<Tensor> buffers;
  for (const auto& [name, buffer] : module.buffers) buffers.push_back(buffer);
  return KeptTensors(std::move(buffers));
}

}  // namespace lockstep
