// A Trainer whose optimizer is made by value.
// expects: must return a std::unique_ptr to an optimizer
#include <torch/torch.h>

#include "lockstep/train/trainer.h"

int main() {
  lockstep::Trainer trainer(
      [] { return std::make_shared<torch::nn::LinearImpl>(2, 2); });
  trainer.optimizer([](torch::nn::LinearImpl& net) {
    return torch::optim::SGD(net.parameters(), 0.1);
  });
}
