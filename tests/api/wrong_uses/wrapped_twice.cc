// A wrapper where the module belongs.
// expects: can't be wrapped again
#include <torch/torch.h>

#include "lockstep/parallel/data_parallel.h"

int main() {
  const torch::nn::Linear net(2, 2);
  const lockstep::DataParallel model(net, lockstep::devices("2xcpu"));
  const lockstep::DataParallel twice(model, lockstep::devices("2xcpu"));
  return twice->is_training() ? 0 : 1;
}
