// A pointer to an optimizer where train_step() takes the optimizer.
// expects: train_step\(\) takes an optimizer, \*optimizer if you have a pointer
#include <torch/torch.h>

#include "lockstep/parallel/data_parallel.h"

int main() {
  const torch::nn::Linear net(2, 2);
  const lockstep::DataParallel model(net, lockstep::devices("2xcpu"));
  const auto sgd =
      std::make_unique<torch::optim::SGD>(model->parameters(), 0.1);
  const auto loss = [](const torch::Tensor& output,
                       const torch::Tensor& target) {
    return torch::mse_loss(output, target);
  };
  const torch::Tensor x = torch::ones({4, 2});
  model->train_step(x, x, loss, sgd);
}
