#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/stopwatch.h"
#include "lockstep/base/trace.h"
#include "lockstep/monitor/job_folder.h"
#include "lockstep/monitor/rank_status.h"
#include "lockstep/train/options.h"
#include "lockstep/train/run_report.h"

namespace lockstep::train {

/// What a device did since the run began, and what it has now.
struct DeviceUse {
  std::string name;
  double busy_s = 0;
  int64_t memory_bytes = 0;
  int64_t memory_peak_bytes = 0;
};

/// Says what this rank does, for `lockstep top`: twice a second at most, and
/// at the end of a step. It costs a small file in memory, or in the run's
/// folder; what would cost more is measured only while somebody watches.
class LiveStatus {
 public:
  /// `report`: what is known before the first step. Collective: all ranks take
  /// rank 0's name of the job.
  LiveStatus(const TrainOptions& options, const RunReport& report,
             int64_t total_steps);
  ~LiveStatus();
  LiveStatus(const LiveStatus&) = delete;
  LiveStatus& operator=(const LiveStatus&) = delete;

  /// Says it at once.
  void enter(monitor::Activity activity);
  /// After a step; `seconds` is what it took.
  void add_step(int64_t step, int64_t epoch, double seconds, double loss);
  /// Of a rank there is one recording: false while the run has its own.
  void let_record(bool may_record) { can_record_ = may_record; }
  /// Whether it is time to tell what add_step() noted: then call tell().
  bool is_due() const { return since_told_.seconds() >= kEvery_s; }
  void tell(const std::vector<DeviceUse>& devices);

 private:
  static constexpr double kEvery_s = 0.5;

  void write();
  void keep_loss(int64_t step, double loss);
  /// Wait and communication since the last time, if this was recorded.
  void take_shares();

  monitor::RankStatus status_;
  monitor::StatusFile file_;
  int64_t batch_size_;
  bool can_record_;
  Stopwatch since_told_;
  std::vector<double> busy_before_s_;
  double steps_s_ = 0;  // since the last time, as are those below
  int64_t steps_ = 0;
  int64_t loss_every_ = 1;  // steps between two points of the curve
  std::optional<TraceRecording> recording_;
  int64_t recorded_from_ns_ = 0;
};

}  // namespace lockstep::train
