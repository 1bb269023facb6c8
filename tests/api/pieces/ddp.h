#pragma once

#include "lockstep/lockstep.h"

// Declarations that the code in docs/ddp.md uses.
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
inline torch::Tensor cross_entropy(const torch::Tensor& output,
                                   const torch::Tensor& target) {
  return torch::cross_entropy_loss(output, target);
}
inline lockstep::World world;
inline lockstep::DistributedDataParallel model(net, world);
inline torch::optim::SGD sgd(model->parameters(), 0.1);
inline torch::Tensor x, y, x2, y2, first_view, second_view;
inline double temperature = 0.1;
inline std::vector<torch::Tensor> mine;
inline void step(const torch::Tensor&) {}
