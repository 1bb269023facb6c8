#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include <torch/types.h>

#include "lockstep/base/checksum.h"
#include "lockstep/checkpoint/safetensors_header.h"

namespace lockstep {

/// Named tensors in order, and the metadata of the file.
struct SafeTensors {
  std::vector<std::pair<std::string, torch::Tensor>> tensors;
  std::map<std::string, std::string> metadata;
};

/// Writes `content` in the safetensors format. The file is written under
/// another name, synced and renamed, so `path` has either the old file or the
/// new one, never a part. Tensors may be on any device and have any strides.
/// The file's bytes are added to `checksum`. Throws CheckpointError for a
/// tensor or a name that the format can't hold, and IoError if the file can't
/// be written.
void write_safetensors(const std::string& path, const SafeTensors& content,
                       Checksum* checksum = nullptr);

/// Reads a file that may be hostile: every size, range and key is checked
/// before use. The tensors are on the CPU, contiguous, in the header's order.
/// Throws CheckpointError naming the tensor and what is wrong with it.
SafeTensors read_safetensors(const std::string& path);
/// Reads only the descriptions of the tensors. Throws as read_safetensors()
/// does.
SafeTensorsHeader read_safetensors_header(const std::string& path);

}  // namespace lockstep
