#include "lockstep/optim/fused_kernels.h"

#include <ATen/core/LegacyTypeDispatch.h>

namespace lockstep::optim {

using torch::Tensor;

namespace {

bool is_half(at::ScalarType type) {
  return type == torch::kHalf || type == torch::kBFloat16;
}

void update_in_place(const Tensor& parameter, const Tensor& gradient,
                     const Tensor& momentum, const SgdStep& step) {
  const at::TensorList momenta =
      momentum.defined() ? at::TensorList(momentum) : at::TensorList();
  at::_fused_sgd_(parameter, gradient, momenta, step.weight_decay,
                  step.momentum, step.lr, step.dampening, step.nesterov,
                  /*maximize=*/false, step.is_first);
}

}  // namespace

void sgd_update(const Tensor& parameter, const Tensor& gradient,
                const Tensor& momentum, const SgdStep& step) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (!parameter.is_cpu() || !is_half(parameter.scalar_type())) {
    return update_in_place(parameter, gradient, momentum, step);
  }
  // ATen 2.11's CPU kernel leaves out whole vectors of half and bfloat16
  // (pytorch #191763). In float it is right, and the block's copies stay in
  // the cache. Its own arithmetic is in float for these types, too.
  const Tensor wide = parameter.to(torch::kFloat);
  const Tensor wide_momentum =
      momentum.defined() ? momentum.to(torch::kFloat) : momentum;
  update_in_place(wide, gradient.to(torch::kFloat), wide_momentum, step);
  parameter.copy_(wide);
  if (momentum.defined()) momentum.copy_(wide_momentum);
}

}  // namespace lockstep::optim
