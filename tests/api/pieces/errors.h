#pragma once

#include "lockstep/lockstep.h"

// Declarations that the code in docs/errors.md uses.
struct Net : torch::nn::Cloneable<Net> {
  Net() { reset(); }
  void reset() override {
    layer = register_module("layer", torch::nn::Linear(4, 3));
  }
  torch::Tensor forward(torch::Tensor x) { return layer(x); }
  torch::nn::Linear layer{nullptr};
};
inline std::shared_ptr<Net> net = std::make_shared<Net>();
inline torch::Tensor loss(const torch::Tensor& output,
                          const torch::Tensor& target) {
  return torch::cross_entropy_loss(output, target);
}
inline lockstep::DataParallel model(net, lockstep::devices("cpu:2"));
inline auto optimizer = lockstep::optim::sgd(model->parameters(), {.lr = 0.1});
inline torch::Tensor x, y;
