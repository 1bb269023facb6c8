// A text where the devices belong.
// expects: the devices must be a std::vector<lockstep::Device>
#include <torch/torch.h>

#include "lockstep/parallel/data_parallel.h"

int main() {
  const torch::nn::Linear net(2, 2);
  const lockstep::DataParallel model(net, "2xcpu");
  return model->is_training() ? 0 : 1;
}
