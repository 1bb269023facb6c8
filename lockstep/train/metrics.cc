#include "lockstep/train/metrics.h"

namespace lockstep::train {

int64_t count_correct(const torch::Tensor& logits,
                      const torch::Tensor& targets) {
  const torch::NoGradGuard no_grad;
  return logits.argmax(1).eq(targets).sum().item<int64_t>();
}

}  // namespace lockstep::train
