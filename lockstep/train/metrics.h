#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <torch/types.h>

#include "lockstep/losses/weighted_loss.h"

namespace lockstep::training {

/// Numbers by name. Each is a mean over samples, or over the units that the
/// loss function stated: {"loss", 0.31}.
using Metrics = std::map<std::string, double>;

/// Returns "loss 0.3100"; for an accuracy, "acc 71.20%".
std::string metric_text(const std::string& name, double value);
/// Returns the loss, then the other metrics by name.
std::vector<std::pair<std::string, double>> loss_first(const Metrics& metrics);

/// A number that is reported besides the loss, computed from the samples of a
/// shard.
struct Metric {
  Metric(std::string its_name, torch::Tensor mean_of_shard,
         torch::Tensor units = {})
      : name(std::move(its_name)),
        mean(std::move(mean_of_shard)),
        weight(std::move(units)) {}

  std::string name;
  /// A scalar without a graph. It may be NaN if `weight` is 0.
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

/// Returns the fraction of rows of `logits` (N, classes) whose greatest value
/// is at their target (N): a float64 scalar. Both tensors are on the same
/// device.
torch::Tensor accuracy(const torch::Tensor& logits,
                       const torch::Tensor& targets);

/// Means of step metrics, weighted by the samples of each step. The training
/// loss of an epoch is therefore the mean over its samples of the losses that
/// the steps reported, even if those are means over tokens.
class RunningMean {
 public:
  RunningMean() = default;
  /// Continues from sums over `samples`.
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

}  // namespace lockstep::training
