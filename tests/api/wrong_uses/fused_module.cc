// fuse() for the module instead of its wrapper.
// expects: the DataParallel or DistributedDataParallel that it trains
#include <torch/torch.h>

#include "lockstep/parallel/data_parallel.h"

int main() {
  const torch::nn::Linear net(2, 2);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  lockstep::optim::fuse(sgd, net).step();
}
