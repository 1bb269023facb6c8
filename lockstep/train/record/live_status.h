#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "lockstep/base/stopwatch.h"
#include "lockstep/base/trace.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/monitor/job_folder.h"
#include "lockstep/monitor/rank_status.h"
#include "lockstep/train/callback.h"
#include "lockstep/train/run_report.h"
#include "lockstep/train/step/step_accounts.h"
#include "lockstep/train/train_options.h"

namespace lockstep::training {

/// Publishes what this rank is doing, for `lockstep top`, at the end of a step
/// and at most twice a second. It costs a small file in memory, or in the run's
/// folder. Anything that costs more is measured only while somebody watches.
class LiveStatus : public Callback {
 public:
  /// `report`: what is known before the first step. `devices` reads the
  /// accounts of this rank's devices. Collective: all ranks use the job name of
  /// rank 0.
  LiveStatus(const TrainOptions& options, const ProcessGroup& world,
             const RunReport& report, int64_t total_steps,
             std::function<std::vector<DeviceUse>()> devices);
  ~LiveStatus() override;
  LiveStatus(const LiveStatus&) = delete;
  LiveStatus& operator=(const LiveStatus&) = delete;

  void after_step(const RunState& at, const Metrics& metrics) override;
  void before_evaluation(const RunState& at) override;
  void before_checkpoint(const RunState& at) override;
  /// Publishes the steps since the last call.
  void publish();

 private:
  /// Publishes the activity at once.
  void enter(monitor::Activity activity);
  void write();
  void keep_loss(int64_t step, double loss);
  /// Takes the fractions of time spent in waiting and communication since the
  /// last call, if they were recorded.
  void take_shares();

  monitor::RankStatus status_;
  monitor::StatusFile file_;
  int64_t batch_size_;
  std::function<std::vector<DeviceUse>()> devices_;
  Stopwatch since_published_;
  std::vector<double> busy_before_s_;
  double steps_s_ = 0;  // since the last call of publish(), like steps_
  int64_t steps_ = 0;
  int64_t loss_every_ = 1;  // steps between two points of the curve
  std::optional<TraceRecording> recording_;
  int64_t recorded_from_ns_ = 0;
};

}  // namespace lockstep::training
