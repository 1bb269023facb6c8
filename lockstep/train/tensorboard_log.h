#pragma once

#include <cstdint>
#include <string>

#include "lockstep/base/stopwatch.h"
#include "lockstep/train/callback.h"
#include "lockstep/train/event_file.h"

namespace lockstep::train {

/// Writes what a run tells of its steps and evaluations for TensorBoard: an
/// event file of scalars "train/loss", "test/accuracy", "lr", "step_ms", ...,
/// by steps done.
///
/// Each run begins a file of its own in the folder. That of a run that goes on
/// begins with a session log, by which TensorBoard drops what files before it
/// have of the steps that are repeated. For one rank; that of others is not
/// made.
class TensorBoardLog : public Callback {
 public:
  /// Makes `folder` if it is not there. Throws IoError.
  explicit TensorBoardLog(const std::string& folder) : file_(folder) {}

  void before_step(const RunState& at) override;
  void after_step(const RunState& at, const Metrics& metrics) override;
  void after_evaluation(const RunState& at, const TestReport& test) override;

 private:
  void open(int64_t step);
  void write_scalars(int64_t step, const std::string& prefix,
                     const Metrics& metrics);

  EventFile file_;
  Stopwatch watch_;
};

}  // namespace lockstep::train
