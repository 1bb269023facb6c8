// A number where train_step() takes its options by name.
// expects: (conversion|convert|no matching).*(TrainStepOptions|train_step)
#include <torch/torch.h>

#include "lockstep/parallel/data_parallel.h"

int main() {
  const torch::nn::Linear net(2, 2);
  const lockstep::DataParallel model(net, lockstep::devices("2xcpu"));
  torch::optim::SGD sgd(model->parameters(), 0.1);
  const auto loss = [](const torch::Tensor& output,
                       const torch::Tensor& target) {
    return torch::mse_loss(output, target);
  };
  const torch::Tensor x = torch::ones({4, 2});
  model->train_step(x, x, loss, sgd, 1.0);
}
