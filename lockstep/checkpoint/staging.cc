#include "lockstep/checkpoint/staging.h"

#include "lockstep/checkpoint/copy_plan.h"

namespace lockstep {
namespace {

using torch::Tensor;

bool is_like(const Tensor& one, const Tensor& other) {
  return one.defined() && one.sizes() == other.sizes() &&
         one.strides() == other.strides() &&
         one.scalar_type() == other.scalar_type();
}

}  // namespace

std::vector<Tensor> Staging::copy(const std::vector<Tensor>& tensors) {
  const torch::NoGradGuard no_grad;
  memory_.resize(tensors.size());
  CopyPlan plan;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& tensor = tensors[i];
    if (!is_like(memory_[i], tensor)) {
      memory_[i] = torch::empty_strided(tensor.sizes(), tensor.strides(),
                                        tensor.options().device(torch::kCPU));
    }
    plan.add(tensor.detach(), memory_[i]);
  }
  plan.run();
  return memory_;
}

}  // namespace lockstep
