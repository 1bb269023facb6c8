#pragma once

#include <cstdint>
#include <string>

#include "lockstep/train/callback.h"
#include "lockstep/train/event_file.h"

namespace lockstep::train {

/// Writes the steps and evaluations of a run for TensorBoard: an event file of
/// scalars "train/loss", "test/accuracy", "lr", "step_ms", ..., by steps done.
///
/// Each run begins a new file in the folder. The file of a resumed run begins
/// with a session log, which makes TensorBoard drop the repeated steps of
/// earlier files. Only one rank makes a TensorBoardLog.
class TensorBoardLog : public Callback {
 public:
  /// Makes `folder` if it does not exist. Throws IoError.
  explicit TensorBoardLog(const std::string& folder) : file_(folder) {}

  void before_step(const RunState& at) override;
  void after_step(const RunState& at, const Metrics& metrics) override;
  void after_evaluation(const RunState& at, const TestReport& test) override;

 private:
  void open(int64_t step);
  void write_scalars(int64_t step, const std::string& prefix,
                     const Metrics& metrics);

  EventFile file_;
};

}  // namespace lockstep::train
