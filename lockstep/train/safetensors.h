#pragma once

#include <torch/torch.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {

/// Named tensors in order, and what else the file says of itself.
struct SafeTensors {
  std::vector<std::pair<std::string, torch::Tensor>> tensors;
  std::map<std::string, std::string> metadata;
};

/// Writes `content` in the safetensors format: aside, synced and renamed, so
/// that `path` holds the old file or the new one, never a part. Tensors may be
/// on any device and of any strides. Throws CheckpointError.
void write_safetensors(const std::string& path, const SafeTensors& content);

/// Reads a file that may be hostile: every size, range and key is checked
/// before use. Throws CheckpointError saying what is wrong with which tensor.
SafeTensors read_safetensors(const std::string& path);

}  // namespace lockstep
