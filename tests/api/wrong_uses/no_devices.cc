// DataParallel without devices, as in PyTorch.
// expects: the second argument is missing: the devices
#include <torch/torch.h>

#include "lockstep/parallel/data_parallel.h"

int main() {
  const auto net = std::make_shared<torch::nn::LinearImpl>(2, 2);
  const lockstep::DataParallel model(net);
  return model->is_training() ? 0 : 1;
}
