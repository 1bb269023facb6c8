// DistributedDataParallel without the ranks that it is for.
// expects: the second argument is missing: a lockstep::ProcessGroup
#include <torch/torch.h>

#include "lockstep/parallel/distributed_data_parallel.h"

int main() {
  const torch::nn::Linear net(2, 2);
  const lockstep::DistributedDataParallel model(net);
  return model->is_training() ? 0 : 1;
}
