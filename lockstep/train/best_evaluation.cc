#include "lockstep/train/best_evaluation.h"

#include <cmath>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::training {

BestEvaluation::BestEvaluation(const std::string& metric, int64_t patience)
    : metric_(metric.substr(0, metric.find(':'))), patience_(patience) {
  const std::string suffix = metric.substr(metric_.size());
  if (metric_.empty() ||
      (!suffix.empty() && suffix != ":min" && suffix != ":max")) {
    throw InvalidArgument(
        "train", {.code = ErrorCode::kBadOption,
                  .what = "save_best can't be '" + metric + "'",
                  .expected = "a metric, which may end in :min or :max",
                  .fix = "for example loss, accuracy or error:min"});
  }
  is_greatest_best_ = suffix.empty() ? metric_ == "accuracy" : suffix == ":max";
}

void BestEvaluation::after_evaluation(const RunState& at,
                                      const TestReport& test) {
  const auto found = test.metrics.find(metric_);
  if (found == test.metrics.end()) {
    std::vector<std::string> names;
    for (const auto& [name, value] : test.metrics) names.push_back(name);
    throw InvalidArgument("train",
                          {.code = ErrorCode::kUnknownName,
                           .what = "the task has no metric '" + metric_ + "'",
                           .fix = did_you_mean(metric_, names)});
  }
  // A step may be evaluated again after the loss of a rank.
  if (at.step == step_) return;
  const double value = found->second;
  const bool is_better =
      std::isfinite(value) &&
      (step_ < 0 || (is_greatest_best_ ? value > value_ : value < value_));
  if (!is_better) {
    ++worse_in_a_row_;
    return;
  }
  step_ = at.step;
  value_ = value;
  worse_in_a_row_ = 0;
}

OptimizerState BestEvaluation::state() const {
  return {{"step", torch::tensor(step_, torch::kInt64)},
          {"value", torch::tensor(value_, torch::kFloat64)},
          {"worse_in_a_row", torch::tensor(worse_in_a_row_, torch::kInt64)}};
}

void BestEvaluation::load_state(const OptimizerState& state) {
  step_ = state.at("step").item<int64_t>();
  value_ = state.at("value").item<double>();
  worse_in_a_row_ = state.at("worse_in_a_row").item<int64_t>();
}

}  // namespace lockstep::training
