// A module, and not a pointer to it.
// expects: the first argument must be a std::shared_ptr to the module
#include <torch/torch.h>

#include "lockstep/parallel/data_parallel.h"

int main() {
  torch::nn::LinearImpl net(2, 2);
  const lockstep::DataParallel model(net, lockstep::devices("2xcpu"));
  return model->is_training() ? 0 : 1;
}
