// A no_sync() that ends before the backward that it is meant for.
// expects: (nodiscard|unused-result)
#include <torch/torch.h>

#include "lockstep/parallel/distributed_data_parallel.h"

void accumulate(lockstep::DistributedDataParallel<torch::nn::LinearImpl>& model,
                const torch::Tensor& x) {
  model->no_sync();
  model->forward(x).sum().backward();
}
