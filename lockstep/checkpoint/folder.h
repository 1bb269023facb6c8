#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

struct SavedCheckpoint {
  int64_t step = 0;
  std::string path;
};

/// Returns DIR/step-00000030.
std::string checkpoint_path(const std::string& dir, int64_t step);

/// Returns the folders in `dir` that have the name of a checkpoint, newest
/// first.
std::vector<SavedCheckpoint> list_checkpoints(const std::string& dir);

/// Removes all but the `keep` newest checkpoints up to step `last`, which was
/// just saved. Later ones are damaged or belong to another run, so they don't
/// count.
void prune_checkpoints(const std::string& dir, int64_t last, int keep);

}  // namespace lockstep
