#include "lockstep/train/step/shard_metrics.h"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <utility>

#include <fmt/format.h>
#include <torch/types.h>

#include "lockstep/base/error.h"

namespace lockstep::training {
namespace {

double number_of(const torch::Tensor& number, const std::string& what) {
  if (number.defined() && number.numel() == 1) return number.item<double>();
  throw TrainError({.code = ErrorCode::kBadLoss,
                    .what = what + " is not a number",
                    .expected = "a scalar tensor",
                    .got = number.defined()
                               ? "shape " + c10::str(number.sizes())
                               : "an undefined tensor"});
}

MetricSum sum_of(const Metric& metric, int64_t samples) {
  const double weight =
      metric.weight.defined()
          ? number_of(metric.weight,
                      fmt::format("the weight of the metric '{}'", metric.name))
          : static_cast<double>(samples);
  if (!std::isfinite(weight) || weight < 0) {
    throw TrainError({.code = ErrorCode::kBadLoss,
                      .what = fmt::format("the metric '{}' has a weight that "
                                          "can't be used",
                                          metric.name),
                      .expected = "0 or more",
                      .got = fmt::format("{}", weight)});
  }
  const double mean =
      number_of(metric.mean, fmt::format("the metric '{}'", metric.name));
  // The mean over no units may be NaN.
  return {.sum = weight == 0 ? 0 : mean * weight, .weight = weight};
}

}  // namespace

Metrics means_of(const MetricSums& sums) {
  Metrics means;
  for (const auto& [name, sum] : sums) means[name] = sum.mean();
  return means;
}

ShardMetrics::ShardMetrics(ProcessGroup world, int64_t shards)
    : world_(std::move(world)), shards_(shards) {}

void ShardMetrics::add(int64_t shard, int64_t samples,
                       const std::vector<Metric>& metrics) {
  // Computed without the lock, since reading a number may wait for a GPU.
  std::vector<MetricSum> added;
  for (const Metric& metric : metrics) added.push_back(sum_of(metric, samples));
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < metrics.size(); ++i) {
    MetricSum& sum = sums_of(metrics[i].name)[static_cast<size_t>(shard)];
    sum.sum += added[i].sum;
    sum.weight += added[i].weight;
  }
}

void ShardMetrics::replace(int64_t shard, int64_t samples,
                           const std::vector<Metric>& metrics) {
  {
    const std::lock_guard lock(mutex_);
    for (auto& [name, sums] : sums_) sums[static_cast<size_t>(shard)] = {};
  }
  add(shard, samples, metrics);
}

// Requires the lock.
std::vector<MetricSum>& ShardMetrics::sums_of(const std::string& name) {
  const auto found = sums_.find(name);
  if (found != sums_.end()) return found->second;
  // "samples" is a key of the reports.
  const bool is_text = !name.empty() && name != "samples" &&
                       name.find_first_of("\n\r\t") == std::string::npos;
  if (is_agreed_ || !is_text) {
    throw TrainError(
        {.code = ErrorCode::kBadLoss,
         .what = fmt::format("the loss function returned a metric '{}'", name),
         .expected = is_agreed_ ? "those of the first step: " + names(", ")
                                : "a name in one line, and not 'samples'",
         .fix = "return the same metrics for every batch"});
  }
  return add_name(name);
}

std::vector<MetricSum>& ShardMetrics::add_name(const std::string& name) {
  return sums_[name] = std::vector<MetricSum>(static_cast<size_t>(shards_));
}

std::string ShardMetrics::names(const char* separator) const {
  std::string joined;
  for (const auto& [name, sums] : sums_) {
    if (!joined.empty()) joined += separator;
    joined += name;
  }
  return joined;
}

// Makes sure that all ranks have the same metrics. A rank without samples has
// none, and takes those of the others.
void ShardMetrics::agree_on_names() {
  is_agreed_ = true;
  if (world_.size() == 1) return;
  for (const std::string& text : world_.all_gather_text(names("\n"))) {
    if (text.empty()) continue;
    if (sums_.empty()) {
      std::istringstream lines(text);
      for (std::string name; std::getline(lines, name);) add_name(name);
    }
    if (text == names("\n")) continue;
    throw TrainError({.code = ErrorCode::kBadLoss,
                      .what = "the ranks have different metrics",
                      .expected = names(", "),
                      .got = text,
                      .fix = "return the same metrics on every rank"});
  }
}

MetricSums ShardMetrics::reduce(std::vector<double>& extra) {
  const std::lock_guard lock(mutex_);
  if (!is_agreed_) agree_on_names();
  if (world_.size() > 1) {
    std::vector<double> values = extra;
    for (const auto& [name, sums] : sums_) {
      for (const MetricSum& sum : sums) {
        values.push_back(sum.sum);
        values.push_back(sum.weight);
      }
    }
    // Each shard belongs to one rank and the others add 0, so nothing is
    // rounded.
    torch::Tensor message = torch::tensor(values, torch::kFloat64);
    world_.all_reduce(message);
    const auto* summed = message.const_data_ptr<double>();
    std::copy_n(summed, extra.size(), extra.begin());
    summed += extra.size();
    for (auto& [name, sums] : sums_) {
      for (MetricSum& sum : sums) {
        sum = {.sum = summed[0], .weight = summed[1]};
        summed += 2;
      }
    }
  }
  MetricSums result;
  for (auto& [name, sums] : sums_) {
    MetricSum& total = result[name];
    for (MetricSum& shard_values : sums) {
      total.sum += shard_values.sum;
      total.weight += shard_values.weight;
      shard_values = {};
    }
  }
  return result;
}

}  // namespace lockstep::training
