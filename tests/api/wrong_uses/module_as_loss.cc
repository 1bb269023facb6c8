// A module of torch::nn as the loss.
// expects: the loss must be a function of
#include <torch/torch.h>

#include "lockstep/parallel/data_parallel.h"

int main() {
  const torch::nn::Linear net(2, 2);
  const lockstep::DataParallel model(net, lockstep::devices("2xcpu"));
  torch::optim::SGD sgd(model->parameters(), 0.1);
  const torch::Tensor x = torch::ones({4, 2});
  const torch::nn::MSELoss loss;
  return model->train_step(x, x, loss, sgd).is_finite ? 0 : 1;
}
