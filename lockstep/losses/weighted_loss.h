#pragma once

#include <utility>

#include <torch/types.h>

namespace lockstep {

/// A loss and the number of units that it is the mean of.
///
/// A step computes a loss for each shard of a batch. The batch's loss is the
/// mean of the shards' losses, weighted by `weight`, and the gradient is the
/// gradient of this mean:
///
///     [](const torch::Tensor& logits, const torch::Tensor& targets)
///         -> lockstep::WeightedLoss {
///       auto kept = targets.ne(-100).sum();
///       return {torch::nn::functional::cross_entropy(logits, targets), kept};
///     }
///
/// A loss that is a mean over the samples needs no weight: return the tensor.
struct WeightedLoss {
  /// Makes a loss that is a mean over the samples.
  WeightedLoss(torch::Tensor mean)  // NOLINT(google-explicit-constructor)
      : loss(std::move(mean)) {}
  WeightedLoss(torch::Tensor mean, torch::Tensor units)
      : loss(std::move(mean)), weight(std::move(units)) {}
  WeightedLoss(torch::Tensor mean, const at::Scalar& units)
      : loss(std::move(mean)),
        weight(torch::scalar_tensor(units, torch::kFloat64)) {}

  /// A scalar. It may be NaN if `weight` is 0.
  torch::Tensor loss;
  /// A scalar, 0 or more, without a graph: the number of tokens, pixels or
  /// weighted samples. If undefined, the number of samples is used.
  torch::Tensor weight{};
};

}  // namespace lockstep
