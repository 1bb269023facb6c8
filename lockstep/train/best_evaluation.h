#pragma once

#include <cstdint>
#include <string>

#include "lockstep/train/callback.h"

namespace lockstep::train {

/// Which evaluation of a run was the best, and whether it is time to stop
/// looking for a better one.
class BestEvaluation : public Callback {
 public:
  /// `metric`: a name, at which the least value is the best, but of accuracy
  /// the greatest; with ":min" or ":max" behind it, that. `patience`: so many
  /// evaluations in a row without a better one end the run; 0: none do.
  /// Throws InvalidArgument for another suffix.
  BestEvaluation(const std::string& metric, int64_t patience);

  /// Throws InvalidArgument if there is no such metric.
  void after_evaluation(const RunState& at, const TestReport& test) override;
  bool wants_to_stop() const override {
    return patience_ > 0 && worse_in_a_row_ >= patience_;
  }
  OptimizerState state() const override;
  void load_state(const OptimizerState& state) override;

  const std::string& metric() const { return metric_; }
  /// Whether the last evaluation is the best one.
  bool is_new() const { return step_ >= 0 && worse_in_a_row_ == 0; }
  int64_t step() const { return step_; }  ///< of the best; -1: none yet
  double value() const { return value_; }

 private:
  std::string metric_;
  bool is_greatest_best_ = false;
  int64_t patience_;
  int64_t step_ = -1;
  double value_ = 0;
  int64_t worse_in_a_row_ = 0;
};

}  // namespace lockstep::train
