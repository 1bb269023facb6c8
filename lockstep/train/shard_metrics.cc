#include "lockstep/train/shard_metrics.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include "lockstep/base/error.h"

namespace lockstep::train {

ShardMetrics::ShardMetrics(World world, int64_t shards)
    : world_(std::move(world)), shards_(shards) {}

void ShardMetrics::add(int64_t shard, int64_t samples,
                       const LossAndMetrics& values, bool with_loss) {
  // Reading a number may wait for a GPU: outside of the lock.
  std::vector<std::pair<std::string, double>> numbers;
  const auto number_of = [](const std::string& name,
                            const torch::Tensor& mean) {
    if (mean.defined() && mean.numel() == 1) return mean.item<double>();
    throw TrainError({.code = ErrorCode::kBadLoss,
                      .what = fmt::format("the metric '{}' is no number", name),
                      .expected = "a scalar tensor, the mean over the samples",
                      .got = mean.defined() ? "shape " + c10::str(mean.sizes())
                                            : "an undefined tensor"});
  };
  if (with_loss) numbers.emplace_back("loss", number_of("loss", values.loss));
  for (const auto& [name, mean] : values.metrics) {
    numbers.emplace_back(name, number_of(name, mean));
  }
  const std::lock_guard lock(mutex_);
  for (const auto& [name, mean] : numbers) {
    sums_[place_of(name)][static_cast<size_t>(shard)] +=
        mean * static_cast<double>(samples);
  }
}

void ShardMetrics::replace(int64_t shard, int64_t samples,
                           const LossAndMetrics& values, bool with_loss) {
  {
    const std::lock_guard lock(mutex_);
    for (auto& sums : sums_) sums[static_cast<size_t>(shard)] = 0;
  }
  add(shard, samples, values, with_loss);
}

// With the lock.
size_t ShardMetrics::place_of(const std::string& name) {
  const auto found = std::find(names_.begin(), names_.end(), name);
  if (found != names_.end()) {
    return static_cast<size_t>(found - names_.begin());
  }
  // "samples" is a key of the reports.
  const bool is_text = !name.empty() && name != "samples" &&
                       name.find_first_of("\n\r\t") == std::string::npos;
  if (is_agreed_ || !is_text) {
    throw TrainError(
        {.code = ErrorCode::kBadLoss,
         .what = fmt::format("the loss function returned a metric '{}'", name),
         .expected = is_agreed_ ? fmt::format("those of the first step: {}",
                                              fmt::join(names_, ", "))
                                : "a name in one line, and not 'samples'",
         .fix = "return the same metrics for every batch"});
  }
  names_.push_back(name);
  sums_.emplace_back(static_cast<size_t>(shards_), 0.0);
  return names_.size() - 1;
}

// Threads meet names in any order, and a rank without samples meets none.
void ShardMetrics::agree_on_names() {
  is_agreed_ = true;
  std::vector<std::pair<std::string, std::vector<double>>> known;
  for (size_t i = 0; i < names_.size(); ++i) {
    known.emplace_back(names_[i], std::move(sums_[i]));
  }
  std::sort(known.begin(), known.end());
  names_.clear();
  for (const auto& [name, sums] : known) names_.push_back(name);
  if (world_.size() > 1) {
    const std::string own = fmt::format("{}", fmt::join(names_, "\n"));
    for (const std::string& text : world_.all_gather_text(own)) {
      if (text.empty()) continue;
      if (own.empty() && names_.empty()) {
        std::istringstream lines(text);
        for (std::string name; std::getline(lines, name);) {
          names_.push_back(name);
        }
      }
      if (text == fmt::format("{}", fmt::join(names_, "\n"))) continue;
      throw TrainError({.code = ErrorCode::kBadLoss,
                        .what = "the ranks have different metrics",
                        .expected = fmt::format("{}", fmt::join(names_, ", ")),
                        .got = text,
                        .fix = "return the same metrics on every rank"});
    }
  }
  sums_.assign(names_.size(),
               std::vector<double>(static_cast<size_t>(shards_), 0.0));
  for (size_t i = 0; i < known.size(); ++i) sums_[i] = known[i].second;
}

Metrics ShardMetrics::reduce(std::vector<double>& extra) {
  const std::lock_guard lock(mutex_);
  if (!is_agreed_) agree_on_names();
  if (world_.size() > 1) {
    std::vector<double> values = extra;
    for (const auto& sums : sums_) {
      values.insert(values.end(), sums.begin(), sums.end());
    }
    // One rank has a shard, the others add 0: no number is rounded.
    torch::Tensor message = torch::tensor(values, torch::kFloat64);
    world_.all_reduce(message);
    const auto* summed = message.const_data_ptr<double>();
    std::copy_n(summed, extra.size(), extra.begin());
    summed += extra.size();
    for (auto& sums : sums_) {
      std::copy_n(summed, sums.size(), sums.begin());
      summed += sums.size();
    }
  }
  Metrics result;
  for (size_t i = 0; i < names_.size(); ++i) {
    double& sum = result[names_[i]];
    for (double& of_shard : sums_[i]) sum += std::exchange(of_shard, 0.0);
  }
  return result;
}

}  // namespace lockstep::train
