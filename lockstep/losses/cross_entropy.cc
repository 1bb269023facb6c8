#include "lockstep/losses/cross_entropy.h"

#include "lockstep/base/error.h"

namespace lockstep {

WeightedLoss cross_entropy(
    const torch::Tensor& logits, const torch::Tensor& targets,
    const torch::nn::functional::CrossEntropyFuncOptions& options) {
  return {torch::nn::functional::cross_entropy(logits, targets, options),
          targets.ne(options.ignore_index()).sum()};
}

}  // namespace lockstep
