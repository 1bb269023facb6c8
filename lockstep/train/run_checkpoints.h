#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/checkpoint/snapshot.h"
#include "lockstep/checkpoint/writer.h"
#include "lockstep/data/batch_source.h"
#include "lockstep/train/options.h"
#include "lockstep/train/plan.h"
#include "lockstep/train/resume.h"
#include "lockstep/train/step_runner.h"
#include "lockstep/train/task.h"

namespace lockstep::train {

/// The fingerprint of the data, computed beside what else is done, and once.
class DataFingerprint {
 public:
  void begin(std::shared_ptr<const data::BatchSource> data);
  bool is_begun() const { return sha256_.valid(); }
  std::string get() const { return sha256_.get(); }

 private:
  std::shared_future<std::string> sha256_;
};

/// The checkpoints of one run on the disk and in memory, beginning with the one
/// that it goes on from.
class RunCheckpoints {
 public:
  /// Collective. Throws CheckpointError if `resume` is of a run with other
  /// settings or data.
  RunCheckpoints(const Task& task, const TrainOptions& options,
                 const Plan& plan, int64_t total_steps, DataFingerprint& data,
                 const std::optional<Resume>& resume,
                 const std::string& identity);

  /// Loads what `runner` does not have yet. Collective.
  static void restore(const std::optional<Resume>& resume, const Plan& plan,
                      StepRunner& runner);

  /// In the memory of the agent, if it is time for that or `is_last`: nothing
  /// comes after it. Collective.
  void snapshot(const RunPosition& position, StepRunner& runner, bool is_last);
  /// Nothing where there is no out_dir, or if this step is saved already.
  /// Collective.
  void save(const RunPosition& position, const StepRunner& runner);
  /// The same as the best one so far, if the options ask for that. Collective.
  void save_best(const RunPosition& position, const StepRunner& runner);
  /// Waits for the disk. Returns what kept the last one from it, if anything
  /// did. Collective.
  std::optional<std::string> finish(RunReport& report);

  /// The newest of this run's folder that options.checkpoint_every asked for:
  /// the same one whether the run was stopped since or not. Nothing if there is
  /// none that is whole. Waits for the disk. Collective.
  std::optional<Resume> last_regular();

  /// In words, for who gives up. Waits for the disk.
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
  const Plan& plan_;
  const int64_t total_steps_;
  DataFingerprint& data_;
  std::optional<CheckpointWriter> writer_;
  std::optional<CheckpointWriter> best_writer_;
  SnapshotWriter snapshots_;
  std::string resumed_from_;
  bool is_resumed_here_ = false;
  int64_t saved_step_ = -1;
};

}  // namespace lockstep::train
