#pragma once

#include <array>
#include <string>

#include "lockstep/train/checkpoint.h"

namespace lockstep::train {

inline constexpr const char* kModelFile = "model.safetensors";
inline constexpr const char* kOptimizerFile = "optimizer.safetensors";
inline constexpr std::array kCheckpointFiles{kModelFile, kOptimizerFile};
inline constexpr const char* kManifestFile = "manifest.json";

/// Writes manifest.json for the files that are in `folder`.
void write_manifest(const std::string& folder, const CheckpointInfo& info);

/// Reads manifest.json and checks the files of `folder` against it. Throws
/// CheckpointError naming the file that is missing, cut short or changed.
CheckpointInfo read_manifest(const std::string& folder);

}  // namespace lockstep::train
