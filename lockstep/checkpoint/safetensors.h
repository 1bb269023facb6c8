#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include <torch/types.h>

#include "lockstep/base/checksum.h"
#include "lockstep/checkpoint/safetensors_header.h"

namespace lockstep {

/// Named tensors in order, and what else the file says of itself.
struct SafeTensors {
  std::vector<std::pair<std::string, torch::Tensor>> tensors;
  std::map<std::string, std::string> metadata;
};

/// Writes `content` in the safetensors format: aside, synced and renamed, so
/// that `path` holds the old file or the new one, never a part. Tensors may be
/// on any device and of any strides. The file's bytes are added to `checksum`.
/// Throws CheckpointError for a tensor or a name that the format can't hold,
/// IoError for what the disk refuses.
void write_safetensors(const std::string& path, const SafeTensors& content,
                       Checksum* checksum = nullptr);

/// Reads a file that may be hostile: every size, range and key is checked
/// before use. The tensors are on the CPU, contiguous, in the header's order.
/// Throws CheckpointError saying what is wrong with which tensor.
SafeTensors read_safetensors(const std::string& path);
/// Only what the file says of its tensors. Throws likewise.
SafeTensorsHeader read_safetensors_header(const std::string& path);

}  // namespace lockstep
