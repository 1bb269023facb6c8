#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <torch/types.h>

namespace lockstep::train {

/// Numbers by name, each a mean over samples: {"loss", 0.31}.
using Metrics = std::map<std::string, double>;

/// "loss 0.3100"; an accuracy as "acc 71.20%".
std::string metric_text(const std::string& name, double value);
/// The loss, then the others by name.
std::vector<std::pair<std::string, double>> in_order(const Metrics& metrics);

/// What a loss function returns: the loss, and what else is to be told of a
/// shard.
struct LossAndMetrics {
  /// Just a loss.
  LossAndMetrics(torch::Tensor loss_of_shard)  // NOLINT: a loss is enough
      : loss(std::move(loss_of_shard)) {}
  LossAndMetrics(torch::Tensor loss_of_shard,
                 std::vector<std::pair<std::string, torch::Tensor>> others)
      : loss(std::move(loss_of_shard)), metrics(std::move(others)) {}

  /// A scalar, the mean over the shard's samples.
  torch::Tensor loss;
  /// Likewise, by name. They need no graph.
  std::vector<std::pair<std::string, torch::Tensor>> metrics;
};

/// The fraction of rows of `logits` (N, classes) that are greatest at their
/// target (N): a scalar, float64. The tensors are on one device.
torch::Tensor accuracy(const torch::Tensor& logits,
                       const torch::Tensor& targets);

/// Means over the samples added so far.
class RunningMean {
 public:
  RunningMean() = default;
  /// Goes on from sums over `samples`.
  RunningMean(Metrics sums, int64_t samples)
      : sums_(std::move(sums)), samples_(samples) {}
  void add(const Metrics& means, int64_t samples);
  /// Empty before the first sample.
  Metrics means() const;
  const Metrics& sums() const { return sums_; }
  int64_t samples() const { return samples_; }

 private:
  Metrics sums_;
  int64_t samples_ = 0;
};

}  // namespace lockstep::train
