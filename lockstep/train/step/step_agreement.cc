#include "lockstep/train/step/step_agreement.h"

#include <algorithm>

#include <torch/types.h>

#include "lockstep/parallel/exchange/rank_exchange.h"

namespace lockstep::training {
namespace {

/// Counts the ranks that got each signal, as far as this rank knows.
std::vector<double> count_signal(int signal) {
  std::vector<double> ranks_by_signal(kEndSignal + 1, 0.0);
  const auto at = static_cast<size_t>(signal);
  if (signal > 0 && at < ranks_by_signal.size()) ranks_by_signal[at] = 1;
  return ranks_by_signal;
}

/// Returns kEndSignal if any rank got it, because the run is then over,
/// whatever else stops it in this step. Returns the lowest other signal, which
/// puts a person's SIGINT first; 0 if no rank got one.
int first_signal(const std::vector<double>& ranks_by_signal) {
  if (ranks_by_signal[kEndSignal] > 0) return kEndSignal;
  const auto first =
      std::find_if(ranks_by_signal.begin(), ranks_by_signal.end(),
                   [](double ranks) { return ranks > 0; });
  return first == ranks_by_signal.end()
             ? 0
             : static_cast<int>(first - ranks_by_signal.begin());
}

torch::Tensor scalar(double value) {
  return torch::tensor(value, torch::kFloat64);
}

}  // namespace

Agreement::Agreement(const ProcessGroup& world, int64_t shards, bool is_local,
                     LossReduction reduction)
    : world_(world),
      reduction_(reduction),
      metrics_(is_local ? ProcessGroup() : world, shards) {
  if (is_local) rank_metrics_.emplace(world, world.size());
}

StepOutcome Agreement::after_step(const StepResult& result, int stop_signal) {
  std::vector<double> ranks_by_signal = count_signal(stop_signal);
  std::optional<AllReduceSpan> span;
  if (world_.size() > 1) span.emplace(world_.rank(), "outcome");
  StepOutcome outcome{.metrics = means_of(metrics_.reduce(ranks_by_signal)),
                      .samples = result.samples,
                      .is_finite = result.is_finite,
                      .is_skipped = result.is_too_high || result.is_empty,
                      .is_spike = result.is_too_high,
                      .is_empty = result.is_empty};
  outcome.metrics["loss"] = result.loss;
  outcome.stop_signal = first_signal(ranks_by_signal);
  return outcome;
}

StepOutcome Agreement::after_local_step(const StepResult& result,
                                        int64_t samples, int stop_signal,
                                        bool is_common) {
  std::vector<double> none;
  const MetricSums own_sums = metrics_.reduce(none);
  StepOutcome outcome{.metrics = means_of(own_sums),
                      .samples = samples,
                      .is_finite = result.is_finite,
                      .is_skipped = result.is_empty,
                      .is_empty = result.is_empty};
  outcome.metrics["loss"] = result.loss;
  if (!is_common || !outcome.is_finite) return outcome;

  const AllReduceSpan span(world_.rank(), "outcome");
  const bool is_sum = reduction_ == LossReduction::kSum;
  std::vector<Metric> own;
  for (const auto& [name, sum] : own_sums) {
    own.emplace_back(name, scalar(sum.mean()), scalar(sum.weight));
  }
  own.emplace_back("loss", scalar(result.loss),
                   scalar(is_sum ? 1 : result.weight));
  rank_metrics_->add(world_.rank(), result.samples, own);
  std::vector<double> ranks_by_signal = count_signal(stop_signal);
  const MetricSums sums = rank_metrics_->reduce(ranks_by_signal);
  outcome.metrics = means_of(sums);
  const MetricSum& loss = sums.at("loss");
  if (is_sum) outcome.metrics["loss"] = loss.sum;
  outcome.is_skipped = outcome.is_empty = loss.weight == 0;
  outcome.stop_signal = first_signal(ranks_by_signal);
  return outcome;
}

}  // namespace lockstep::training
