// An optimizer of lockstep::optim, where there is only torch::optim now.
// expects: make a torch::optim::SGD and pass it to train_step\(\)
#include <torch/torch.h>

#include "lockstep/parallel/data_parallel.h"

int main() {
  const torch::nn::Linear net(2, 2);
  lockstep::optim::sgd(net->parameters(), 0.1);
}
