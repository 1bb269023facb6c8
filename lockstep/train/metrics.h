#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <torch/types.h>

#include "lockstep/losses/weighted_loss.h"

namespace lockstep::train {

/// Numbers by name, each a mean over samples or over the units that the loss
/// function said: {"loss", 0.31}.
using Metrics = std::map<std::string, double>;

/// "loss 0.3100"; an accuracy as "acc 71.20%".
std::string metric_text(const std::string& name, double value);
/// The loss, then the others by name.
std::vector<std::pair<std::string, double>> in_order(const Metrics& metrics);

/// A number besides the loss, from the samples of a shard.
struct Metric {
  Metric(std::string its_name, torch::Tensor mean_of_shard,
         torch::Tensor units = {})
      : name(std::move(its_name)),
        mean(std::move(mean_of_shard)),
        weight(std::move(units)) {}

  std::string name;
  /// A scalar; it needs no graph. It may be NaN if `weight` is 0.
  torch::Tensor mean;
  /// Number of units that `mean` is the mean of, as in WeightedLoss::weight.
  /// Undefined means the number of samples, whatever the weight of the loss is.
  torch::Tensor weight;
};

/// The result of a loss function: the loss of a shard, with its weight if it is
/// not the mean over the samples, and other numbers to report.
///
///     return {lockstep::cross_entropy(logits, targets),
///             {{"accuracy", right.sum() / tokens, tokens}}};
struct LossAndMetrics : WeightedLoss {
  LossAndMetrics(torch::Tensor mean)  // NOLINT: a loss is enough
      : WeightedLoss(std::move(mean)) {}
  LossAndMetrics(WeightedLoss loss_of_shard,  // NOLINT: a loss is enough
                 std::vector<Metric> others = {})
      : WeightedLoss(std::move(loss_of_shard)), metrics(std::move(others)) {}

  std::vector<Metric> metrics;
};

/// The fraction of rows of `logits` (N, classes) that are greatest at their
/// target (N): a scalar, float64. The tensors are on one device.
torch::Tensor accuracy(const torch::Tensor& logits,
                       const torch::Tensor& targets);

/// Means of the metrics of steps, weighted by the samples of the steps. So the
/// training loss of an epoch is the mean over its samples of the losses that
/// the steps reported, also where these are means over tokens.
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
