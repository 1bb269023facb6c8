#pragma once

#include <torch/autograd.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tests/parallel/ddp/ranks.h"

// Activation checkpointing, for the tests of this layer.
namespace lockstep::testing_ddp {

/// Computes a layer again in the backward, as torch.utils.checkpoint does.
struct Checkpointed : torch::autograd::Function<Checkpointed> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context,
                               const torch::Tensor& x,
                               torch::nn::Linear layer) {
    context->save_for_backward({x});
    context->saved_data["layer"] =
        c10::IValue(reinterpret_cast<int64_t>(layer.get()));
    const torch::NoGradGuard no_grad;
    return torch::relu(layer->forward(x));
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      const torch::autograd::variable_list& gradients) {
    const torch::AutoGradMode with_grad(true);
    auto* layer = reinterpret_cast<torch::nn::LinearImpl*>(
        context->saved_data["layer"].toInt());
    const torch::Tensor x =
        context->get_saved_variables()[0].detach().requires_grad_();
    torch::relu(layer->forward(x)).backward(gradients[0]);
    return {x.grad(), torch::Tensor()};
  }
};

/// A NetImpl that computes its first layer again in the backward.
struct CheckpointedNetImpl : NetImpl {
  torch::Tensor forward(torch::Tensor x) {
    return second(Checkpointed::apply(x.requires_grad_(), first));
  }
};

}  // namespace lockstep::testing_ddp
