// A forward with more inputs than the module takes.
// expects: forward\(\) takes another number of arguments
#include <torch/torch.h>

#include "lockstep/parallel/data_parallel.h"

int main() {
  const torch::nn::Linear net(2, 2);
  const lockstep::DataParallel model(net, lockstep::devices("2xcpu"));
  const torch::Tensor x = torch::ones({4, 2});
  return model->forward(x, x).defined() ? 0 : 1;
}
