// Two inputs of a step, and not a tuple of them.
// expects: inputs of a forward\(\) that takes several are one argument
#include <torch/torch.h>

#include "lockstep/parallel/data_parallel.h"

struct TwoInputs : torch::nn::Cloneable<TwoInputs> {
  void reset() override {}
  torch::Tensor forward(const torch::Tensor& a, const torch::Tensor& b) {
    return a + b;
  }
};

int main() {
  const lockstep::DataParallel model(std::make_shared<TwoInputs>(),
                                     lockstep::devices("2xcpu"));
  torch::optim::SGD sgd(model->parameters(), 0.1);
  const torch::Tensor x = torch::ones({4, 2});
  const auto loss = [](const torch::Tensor& output,
                       const torch::Tensor& target) {
    return torch::mse_loss(output, target);
  };
  return model->train_step(x, x, x, loss, sgd).is_finite ? 0 : 1;
}
