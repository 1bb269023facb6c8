#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

struct SavedCheckpoint {
  int64_t step = 0;
  std::string path;
};

/// DIR/step-00000030.
std::string checkpoint_path(const std::string& dir, int64_t step);

/// The folders in `dir` that are named like checkpoints, the newest first.
std::vector<SavedCheckpoint> list_checkpoints(const std::string& dir);

/// Of those up to step `last`, which was saved just now, removes all but the
/// `keep` newest. Later ones are damaged, or another run's, and not ours to
/// count.
void prune_checkpoints(const std::string& dir, int64_t last, int keep);

}  // namespace lockstep
