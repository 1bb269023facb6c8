#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/checkpoint/snapshot.h"
#include "lockstep/checkpoint/writer.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/train/state/resume.h"
#include "lockstep/train/step/step_runner.h"
#include "lockstep/train/task.h"
#include "lockstep/train/train_options.h"
#include "lockstep/train/training_plan.h"

namespace lockstep::training {

/// The fingerprint of the data. It is computed once, in the background.
using DataFingerprint = std::shared_future<std::string>;

/// The checkpoints of one run on disk and in memory, beginning with the one
/// that it resumes from.
class RunCheckpoints {
 public:
  /// Collective. Throws CheckpointError if `resume` belongs to a run with other
  /// settings or data.
  RunCheckpoints(const Task& task, const TrainOptions& options,
                 const ProcessGroup& world, const Plan& plan,
                 int64_t total_steps, const DataFingerprint& data,
                 const std::optional<Resume>& resume,
                 const std::string& identity);

  /// Saves a snapshot to the agent's memory if one is due or if `is_last`,
  /// after which no other comes. Collective.
  void snapshot(const RunPosition& position, StepRunner& runner, bool is_last);
  /// Discards the snapshot of a step, because a bit changed after its update.
  void discard_snapshot(int64_t step) { snapshots_.discard(step); }
  /// Saves a checkpoint. Does nothing without out_dir, or if this step has been
  /// saved. Collective.
  void save(const RunPosition& position, const StepRunner& runner);
  /// Saves this step as the best one so far, if the options ask for that.
  /// Collective.
  void save_best(const RunPosition& position, const StepRunner& runner);
  /// Waits for the disk. Returns why the last checkpoint could not be saved, if
  /// it could not. Collective.
  std::optional<std::string> finish(RunReport& report);

  /// Returns the newest checkpoint in this run's folder that
  /// options.checkpoint().every() asked for. It is the same one whether or not
  /// the run was stopped since. Returns nothing if no such checkpoint is
  /// complete. Waits for the disk. Collective.
  std::optional<Resume> last_regular();

  /// Describes the last checkpoint for an error message. Waits for the disk.
  std::string last_in_words();
  double stall_s() const { return writer_ ? writer_->costs().stall_s : 0; }

 private:
  void write(CheckpointWriter& writer, const RunPosition& position,
             const StepRunner& runner);
  CheckpointContent content(const RunPosition& position,
                            const StepRunner& runner,
                            const std::string& data) const;

  const Task& task_;
  const TrainOptions& options_;
  ProcessGroup world_;
  const Plan& plan_;
  const int64_t total_steps_;
  DataFingerprint data_;
  std::optional<CheckpointWriter> writer_;
  std::optional<CheckpointWriter> best_writer_;
  SnapshotWriter snapshots_;
  std::string resumed_from_;
  bool is_resumed_here_ = false;
  int64_t saved_step_ = -1;
};

}  // namespace lockstep::training
