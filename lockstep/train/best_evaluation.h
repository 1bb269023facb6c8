#pragma once

#include <cstdint>
#include <string>

#include "lockstep/train/callback.h"

namespace lockstep::training {

/// Remembers which evaluation of a run was the best, and decides when to stop
/// waiting for a better one.
class BestEvaluation : public Callback {
 public:
  /// `metric`: a name. The least value is the best, except for accuracy, where
  /// the greatest is. A ":min" or ":max" after the name overrides this.
  /// `patience`: the run ends after so many evaluations in a row without a
  /// better one; 0: never. Throws InvalidArgument for another suffix.
  BestEvaluation(const std::string& metric, int64_t patience);

  /// Throws InvalidArgument if there is no such metric.
  void after_evaluation(const RunState& at, const TestReport& test) override;
  bool wants_to_stop() const override {
    return patience_ > 0 && worse_in_a_row_ >= patience_;
  }
  OptimizerState state() const override;
  void load_state(const OptimizerState& state) override;

  const std::string& metric() const { return metric_; }
  /// Returns true if the last evaluation is the best one.
  bool is_new() const { return step_ >= 0 && worse_in_a_row_ == 0; }
  int64_t step() const { return step_; }  ///< best evaluation; -1: none yet
  double value() const { return value_; }

 private:
  std::string metric_;
  bool is_greatest_best_ = false;
  int64_t patience_;
  int64_t step_ = -1;
  double value_ = 0;
  int64_t worse_in_a_row_ = 0;
};

}  // namespace lockstep::training
