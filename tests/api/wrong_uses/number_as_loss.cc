// A loss that returns a number.
// expects: must return a tensor with a graph, not its number
#include <torch/torch.h>

#include "lockstep/parallel/data_parallel.h"

int main() {
  const torch::nn::Linear net(2, 2);
  const lockstep::DataParallel model(net, lockstep::devices("2xcpu"));
  torch::optim::SGD sgd(model->parameters(), 0.1);
  const torch::Tensor x = torch::ones({4, 2});
  const auto loss = [](const torch::Tensor& output,
                       const torch::Tensor& target) {
    return torch::mse_loss(output, target).item<double>();
  };
  return model->train_step(x, x, loss, sgd).is_finite ? 0 : 1;
}
