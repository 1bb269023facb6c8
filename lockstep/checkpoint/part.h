#pragma once

#include <string>
#include <vector>

#include "lockstep/checkpoint/manifest.h"
#include "lockstep/checkpoint/state_dict.h"

namespace lockstep {

/// A file of a checkpoint, before it is one.
struct CheckpointPart {
  std::string file;
  NamedTensors tensors;
  size_t parameters = 0;  ///< the first so many tensors are a model's
};

/// What a rank wrote.
struct WrittenParts {
  std::vector<CheckpointFile> files;
  std::vector<std::string> not_finite;  ///< names of tensors
  std::string parameter_sha256;         ///< if it wrote the model
};

/// Writes a rank's parts into `folder`. Throws CheckpointError if a parameter
/// is not finite.
WrittenParts write_parts(const std::string& folder,
                         const std::vector<CheckpointPart>& parts);

/// For the other ranks, and back.
std::string to_text(const WrittenParts& parts);
WrittenParts parts_from_text(const std::string& text);

}  // namespace lockstep
