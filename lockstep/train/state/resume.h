#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/train/task.h"
#include "lockstep/train/train_options.h"
#include "lockstep/train/training_plan.h"

namespace lockstep::training {

/// The state that a run resumes from.
struct Resume {
  std::string path;     ///< checkpoint; "" for a snapshot in memory
  CheckpointInfo info;  ///< includes its run record
  /// Set on the ranks that can read it: on rank 0 for a checkpoint.
  std::shared_ptr<const SavedState> state{};
  int root = 0;  ///< the first of these ranks

  bool is_snapshot() const { return path.empty(); }
};

/// Returns the newest snapshot of the run `identity` that an agent holds, or
/// else what options.checkpoint().resume() asks for, which rank 0 finds and
/// tells to all ranks. Returns nothing if the run starts at the beginning.
/// Collective.
///
/// Throws CheckpointError if a complete checkpoint is missing where there
/// should be one, or if it has a different kind of model. Also throws it if
/// checkpoints in out_dir belong to another run: they would later be taken for
/// this run's own.
std::optional<Resume> find_resume(const Task& task, const TrainOptions& options,
                                  const ProcessGroup& world,
                                  const std::string& identity);

/// Returns the settings that a resumed run takes over where its options leave
/// them open. If nodes have joined, there may be more ranks than the snapshot
/// has shards. The number of shards is then left out, and rank 0 warns.
Settings saved_settings(const TrainOptions& options, const ProcessGroup& world,
                        const std::optional<Resume>& resume);

/// Returns the position of `resume` in epochs of `batches` batches. If there
/// were other epochs when it was saved, because the batch size or the data have
/// changed, the epoch and the batch follow from the step, rank 0 warns, and the
/// epoch has no sums. Throws CheckpointError if that was not allowed, or if the
/// position is impossible. A run that a callback ended goes on if changes are
/// allowed. If the position is beyond the end of the run, rank 0 warns.
RunPosition position_in_epochs(const TrainOptions& options, const Plan& plan,
                               const Resume& resume, int64_t batches,
                               int64_t total_steps);

/// Throws CheckpointError, which lists the settings that differ from the
/// checkpoint's. With options.checkpoint().allow_changes() rank 0 only warns.
/// In any case it only warns of another version of the software or hardware, or
/// of another length of the run.
void check_settings(const TrainOptions& options, const Plan& plan,
                    const RunRecord& saved, const Settings& now,
                    const Settings& versions);

}  // namespace lockstep::training
