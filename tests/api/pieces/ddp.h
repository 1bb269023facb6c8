#pragma once

#include "tests/api/net_and_loss.h"

// Declarations that the code in docs/ddp.md uses.
inline torch::Tensor cross_entropy(const torch::Tensor& output,
                                   const torch::Tensor& target) {
  return torch::cross_entropy_loss(output, target);
}
inline lockstep::ProcessGroup world;
inline lockstep::DistributedDataParallel model(net, world);
inline torch::optim::SGD sgd(model->parameters(), 0.1);
inline torch::Tensor x, y, x2, y2, first_view, second_view;
inline double temperature = 0.1;
inline std::vector<torch::Tensor> mine;
inline void step(const torch::Tensor&) {}
