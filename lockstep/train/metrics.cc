#include "lockstep/train/metrics.h"

#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "lockstep/base/format.h"

namespace lockstep::training {

std::string metric_text(const std::string& name, double value) {
  if (name == "accuracy") return fmt::format("acc {:.2f}%", 100 * value);
  return name + " " + format_number(value);
}

std::vector<std::pair<std::string, double>> loss_first(const Metrics& metrics) {
  std::vector<std::pair<std::string, double>> list;
  const auto loss = metrics.find("loss");
  if (loss != metrics.end()) list.emplace_back(*loss);
  for (const auto& metric : metrics) {
    if (metric.first != "loss") list.emplace_back(metric);
  }
  return list;
}

torch::Tensor accuracy(const torch::Tensor& logits,
                       const torch::Tensor& targets) {
  const torch::NoGradGuard no_grad;
  return logits.argmax(1).eq(targets).to(torch::kFloat64).mean();
}

void RunningMean::add(const Metrics& means, int64_t samples) {
  for (const auto& [name, mean] : means) {
    sums_[name] += mean * static_cast<double>(samples);
  }
  samples_ += samples;
}

Metrics RunningMean::means() const {
  Metrics means;
  if (samples_ == 0) return means;
  for (const auto& [name, sum] : sums_) {
    means[name] = sum / static_cast<double>(samples_);
  }
  return means;
}

}  // namespace lockstep::training
