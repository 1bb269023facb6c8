#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/checkpoint/run_record.h"

namespace lockstep {

/// Description of a checkpoint in its manifest.json.
struct CheckpointInfo {
  /// Description of the model for code that can build it again: a name and its
  /// options. {"name", "resnet18"}, {"classes", "10"}. May be empty.
  Settings model;
  int64_t step = 0;
  int64_t epoch = 0;
  std::string parameter_sha256;
  /// The data from which a trainer resumes; nothing if no trainer saved them.
  std::optional<RunRecord> run;
};

}  // namespace lockstep
