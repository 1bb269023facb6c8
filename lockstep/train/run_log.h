#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/run_record.h"
#include "lockstep/train/metrics.h"
#include "lockstep/train/options.h"
#include "lockstep/train/plan.h"
#include "lockstep/train/progress.h"
#include "lockstep/train/run_report.h"
#include "lockstep/train/step_runner.h"
#include "lockstep/train/thinned_series.h"

namespace lockstep::train {

/// What is known of the steps done. It outlives a Run that ends because another
/// rank was lost.
struct RunRecordings {
  RunReport report;
  std::vector<double> step_times_s;
  ThinnedSeries<double> some_step_times_s{512};
  double time_s = 0;    ///< between the first batch and the last update
  int64_t samples = 0;  ///< in all steps
};

/// What a run says of itself: lines and a bar while it goes, a report at its
/// end.
class RunLog {
 public:
  RunLog(const TrainOptions& options, const Plan& plan,
         RunRecordings& recordings);

  /// The run goes on from there, in epochs of so many batches: what is known of
  /// later steps is forgotten, as they are repeated.
  void go_on_at(const RunPosition& position, int64_t batches);

  /// What is made, and how much there is to do; at the first attempt alone.
  void begin(int64_t samples, const std::string& sample_name,
             int64_t total_steps);
  void add_step(const StepOutcome& outcome, double seconds,
                const StepProgress& at);
  /// `is_whole`: the next step is another epoch's.
  void end_epoch(EpochReport epoch, int64_t steps, bool is_whole);
  void end_steps(int64_t steps, double stall_s, const StepRunner& runner);
  /// While the run goes on, after so many steps.
  void add_evaluation(const TestReport& test, int64_t step);
  void end_evaluation(const TestReport& test);
  /// With the bits at the end; written to `path` by rank 0, if there is one.
  void end(const StepRunner& runner, const std::string& path);

  /// Above the bar; of rank 0 alone.
  void line(std::string_view line) { progress_.line(line); }
  /// Why lines are not shown any more.
  const std::optional<IoError>& output_failure() const {
    return progress_.failure();
  }
  RunReport& report() { return recordings_.report; }
  const RunReport& report() const { return recordings_.report; }
  /// Of the epoch so far.
  const RunningMean& mean() const { return mean_; }

 private:
  std::string device_names() const;  // of all ranks

  const TrainOptions& options_;
  const Plan& plan_;
  RunRecordings& recordings_;
  Progress progress_;
  RunningMean mean_;
};

/// What a run says at its end: time, memory and load of each device, loss and
/// accuracy of the last epoch. Lines, the last without an end; "" for a run of
/// no steps.
/// Those longer than `columns` are broken; 0: none is.
std::string summary_text(const RunReport& report, int columns = 0);

/// "parameter_sha256 12ab... (2 shards)". Digests can be compared only where
/// the number of shards is the same, so it is said with each.
std::string digest_text(const RunReport& report);

}  // namespace lockstep::train
