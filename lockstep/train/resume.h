#pragma once

#include <optional>
#include <string>

#include "lockstep/train/checkpoint.h"
#include "lockstep/train/trainer.h"

namespace lockstep::train {

/// The checkpoint that a run goes on from.
struct Resume {
  std::string path;
  CheckpointInfo info;                     ///< with its run record
  std::optional<CheckpointReader> reader;  ///< on rank 0, which has the files
};

/// What options.resume asks for: found by rank 0 and told to all. Nothing for
/// a run that starts at the beginning. Collective.
///
/// Throws CheckpointError if there is no whole checkpoint where there should be
/// one, if the model's kind is another one, and when checkpoints in out_dir
/// belong to another run than this one will be: they would be taken for its
/// own later.
std::optional<Resume> find_resume(const TrainOptions& options);

/// Throws CheckpointError listing the settings that are not those of the
/// checkpoint. With options.allow_changes this, and in any case another
/// version of what computes or another length of the run, is a warning of
/// rank 0.
void check_settings(const TrainOptions& options, const RunRecord& saved,
                    const Settings& now, const Settings& versions);

}  // namespace lockstep::train
