// A number of ranks where the ProcessGroup belongs.
// expects: the second argument must be a lockstep::ProcessGroup
#include <torch/torch.h>

#include "lockstep/parallel/distributed_data_parallel.h"

int main() {
  const torch::nn::Linear net(2, 2);
  const lockstep::DistributedDataParallel model(net, 2);
  return model->is_training() ? 0 : 1;
}
