#pragma once

#include <cstdint>
#include <string>

#include "lockstep/models/model.h"
#include "lockstep/optim/optimizer.h"

namespace lockstep::train {

/// What a checkpoint says of itself, in its manifest.json.
struct CheckpointInfo {
  models::ModelSpec model;
  int64_t step = 0;
  int64_t epoch = 0;
  std::string parameter_sha256;
};

/// A folder DIR/step-00000030 holding model.safetensors, optimizer.safetensors
/// and manifest.json (written last, with the SHA-256 and size of the others).
/// It is built under another name, synced and renamed, so a folder with that
/// name is always whole. Keeps the newest `keep` of them. Returns the folder.
std::string save_checkpoint(const std::string& dir, const models::Model& model,
                            const optim::Optimizer& optimizer,
                            const CheckpointInfo& info, int keep = 3);

/// The newest whole checkpoint in `dir`, or `dir` itself if it is one. Throws
/// CheckpointError if there is none.
std::string find_checkpoint(const std::string& dir);

/// Reads and checks the manifest, the sizes and checksums.
CheckpointInfo read_checkpoint_info(const std::string& checkpoint);

/// Loads the parameters and buffers (and the optimizer's state, if given).
/// A model of another kind: CheckpointError names what does not fit.
void load_checkpoint(const std::string& checkpoint, models::Model& model,
                     optim::Optimizer* optimizer = nullptr);

}  // namespace lockstep::train
