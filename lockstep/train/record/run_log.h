#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/info.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/device/device.h"
#include "lockstep/train/callback.h"
#include "lockstep/train/metrics.h"
#include "lockstep/train/record/progress.h"
#include "lockstep/train/record/thinned_series.h"
#include "lockstep/train/run_report.h"
#include "lockstep/train/step/step_runner.h"
#include "lockstep/train/train_options.h"
#include "lockstep/train/training_plan.h"

namespace lockstep::training {

/// Records of the steps done so far. They outlive a Run that ends because
/// another rank was lost.
struct RunRecordings {
  RunReport report;
  std::vector<double> step_times_s;
  ThinnedSeries<double> some_step_times_s{512};
  double time_s = 0;    ///< between the first batch and the last update
  int64_t samples = 0;  ///< samples in all steps
};

/// Reports a run to the user: lines and a bar while it runs, a report at its
/// end.
class RunLog : public Callback {
 public:
  /// `batches`: number of batches in an epoch.
  RunLog(const TrainOptions& options, const Plan& plan, int64_t batches,
         RunRecordings& recordings);

  /// Continues at `position`. Records of later steps are dropped, as those
  /// steps are repeated.
  void go_on_at(const RunPosition& position);

  /// Prints, at the first attempt only, what is trained and how much there is
  /// to do.
  void begin(int64_t samples, const std::string& sample_name,
             int64_t total_steps);
  void before_epoch(const RunState& at) override;
  void after_step(const RunState& at, const Metrics& metrics) override;
  void after_epoch(const RunState& at, const Metrics& means) override;
  /// Shows how many batches of an evaluation are done.
  void show_evaluation(int64_t done, int64_t total) {
    progress_.evaluation(done, total);
  }
  void end_steps(int64_t steps, double stall_s, const StepRunner& runner);
  /// Adds an evaluation made during the run, after `step` steps.
  void add_evaluation(const TestReport& test, int64_t step);
  void end_evaluation(const TestReport& test);
  /// Prints the summary and the digest. Rank 0 writes the report to `path`,
  /// unless that is empty.
  void end(const StepRunner& runner, const std::string& path);

  /// Prints `line` above the bar, on rank 0 only.
  void line(std::string_view line) { progress_.line(line); }
  /// Returns why lines are no longer shown.
  const std::optional<IoError>& output_failure() const {
    return progress_.failure();
  }
  RunReport& report() { return recordings_.report; }
  /// Returns the means of the epoch so far.
  const RunningMean& mean() const { return mean_; }

 private:
  std::string device_names() const;  // devices of all ranks

  const TrainOptions& options_;
  const Plan& plan_;
  int64_t batches_;
  RunRecordings& recordings_;
  Progress progress_;
  RunningMean mean_;
  EpochReport epoch_;
  int64_t epoch_begin_ = 0;  // steps done at before_epoch()
};

/// Adds the environment of this process, and the topology of the devices, to a
/// report that has the devices of all ranks. `own`: a device of this rank.
/// Collective.
void describe_machine(const ProcessGroup& world, const Device& own,
                      RunReport& report);

/// Returns the summary at the end of a run: time, memory and load of each
/// device, loss and accuracy of the last epoch. The lines have no newline after
/// the last one. Lines longer than `columns` are wrapped; 0: none are. "" for a
/// run without steps.
std::string summary_text(const RunReport& report, int columns = 0);

/// Returns "parameter_sha256 12ab... (2 shards, 1 thread each)". The numbers
/// are included because only digests with the same numbers can be compared. On
/// accelerators, no thread computes a shard.
std::string digest_text(const RunReport& report);

}  // namespace lockstep::training
