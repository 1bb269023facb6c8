#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::train {

struct SavedCheckpoint {
  int64_t step = 0;
  std::string path;
};

/// DIR/step-00000030.
std::string checkpoint_path(const std::string& dir, int64_t step);

/// The folders in `dir` that are named like checkpoints, the newest first.
std::vector<SavedCheckpoint> list_checkpoints(const std::string& dir);

/// Removes all but the `keep` newest. What was saved just now stays, whatever
/// its number.
void prune_checkpoints(const std::string& dir, const std::string& just_saved,
                       int keep);

}  // namespace lockstep::train
