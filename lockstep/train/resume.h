#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/train/options.h"
#include "lockstep/train/task.h"

namespace lockstep::train {

/// What a run goes on from.
struct Resume {
  std::string path;     ///< of a checkpoint; "" for a snapshot in memory
  CheckpointInfo info;  ///< with its run record
  /// On the ranks that can read it: rank 0 for a checkpoint.
  std::shared_ptr<const SavedState> state{};
  int root = 0;  ///< the first of these ranks

  bool is_snapshot() const { return path.empty(); }
};

/// The newest snapshot of the run `identity` that an agent holds; else what
/// options.resume asks for, found by rank 0 and told to all. Nothing for a run
/// that starts at the beginning. Collective.
///
/// Throws CheckpointError if there is no whole checkpoint where there should be
/// one, if the model's kind is another one, and when checkpoints in out_dir
/// belong to another run than this one will be: they would be taken for its
/// own later.
std::optional<Resume> find_resume(const Task& task, const TrainOptions& options,
                                  const std::string& identity);

/// The settings that a run takes from what it goes on from, where none are
/// given. When nodes came, their ranks may be more than the shards of a
/// snapshot: then its shards are not among them, with a warning of rank 0.
Settings saved_settings(const TrainOptions& options,
                        const std::optional<Resume>& resume);

/// Throws CheckpointError unless `resume` was at a place among epochs of so
/// many batches. That it is beyond the end of the run is a warning of rank 0.
void check_position(const TrainOptions& options, const Resume& resume,
                    int64_t batches, int64_t total_steps);

/// Throws CheckpointError listing the settings that are not those of the
/// checkpoint. With options.allow_changes this, and in any case another
/// version of what computes or another length of the run, is a warning of
/// rank 0.
void check_settings(const TrainOptions& options, const RunRecord& saved,
                    const Settings& now, const Settings& versions);

}  // namespace lockstep::train
