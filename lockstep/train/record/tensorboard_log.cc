#include "lockstep/train/tensorboard_log.h"

#include "lockstep/monitor/rank_status.h"

namespace lockstep::train {

void TensorBoardLog::open(int64_t step) {
  if (!file_.is_begun()) file_.begin(step, monitor::now_s());
}

void TensorBoardLog::write_scalars(int64_t step, const std::string& prefix,
                                   const Metrics& metrics) {
  file_.write_scalars(step, monitor::now_s(), prefix, metrics);
}

void TensorBoardLog::before_step(const RunState& at) { open(at.step); }

void TensorBoardLog::after_step(const RunState& at, const Metrics& metrics) {
  write_scalars(at.step, "train/", metrics);
  write_scalars(at.step, "", {{"lr", at.lr}, {"step_ms", 1e3 * at.step_s}});
}

void TensorBoardLog::after_evaluation(const RunState& at,
                                      const TestReport& test) {
  open(at.step);
  write_scalars(at.step, "test/", test.metrics);
}

}  // namespace lockstep::train
