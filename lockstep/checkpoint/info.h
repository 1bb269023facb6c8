#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/checkpoint/run_record.h"

namespace lockstep {

/// What a checkpoint says of itself, in its manifest.json.
struct CheckpointInfo {
  /// What the model is, by those who can build it again: a name, and what else
  /// there is to choose. {"name", "resnet18"}, {"classes", "10"}. May be empty.
  Settings model;
  int64_t step = 0;
  int64_t epoch = 0;
  std::string parameter_sha256;
  /// What the trainer needs to go on; nothing if another one saved it.
  std::optional<RunRecord> run;
};

}  // namespace lockstep
