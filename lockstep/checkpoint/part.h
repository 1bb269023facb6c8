#pragma once

#include <string>
#include <vector>

#include "lockstep/checkpoint/manifest.h"
#include "lockstep/checkpoint/state_dict.h"

namespace lockstep {

/// The content of a file of a checkpoint.
struct CheckpointPart {
  std::string file;
  NamedTensors tensors;
  size_t parameters = 0;  ///< number of leading tensors that are a model's
};

/// Results of the parts that a rank wrote.
struct WrittenParts {
  std::vector<CheckpointFile> files;
  std::vector<std::string> not_finite;  ///< names of tensors
  std::string parameter_sha256;         ///< set if it wrote the model
};

/// Writes a rank's parts into `folder`. Throws CheckpointError if a parameter
/// is not finite.
WrittenParts write_parts(const std::string& folder,
                         const std::vector<CheckpointPart>& parts);

/// Convert to text for the other ranks, and back.
std::string to_text(const WrittenParts& parts);
WrittenParts parts_from_text(const std::string& text);

}  // namespace lockstep
