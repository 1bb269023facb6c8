#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <torch/types.h>

#include "lockstep/base/checksum.h"

namespace lockstep {

/// Description of one tensor in a safetensors header. Offsets are in bytes from
/// the end of the header.
struct SafeTensorsEntry {
  std::string name;
  torch::ScalarType dtype = torch::kFloat32;
  std::vector<int64_t> shape;
  uint64_t begin = 0;
  uint64_t end = 0;
};

struct SafeTensorsHeader {
  std::vector<SafeTensorsEntry> entries;  ///< in the header's order
  std::map<std::string, std::string> metadata;
};

/// Throws CheckpointError (kMalformedData).
[[noreturn]] void refuse_safetensors(const std::string& what,
                                     const std::string& expected,
                                     const std::string& got);

/// Limit set by the format.
inline constexpr uint64_t kMaxSafeTensorsHeader = 100'000'000;

/// Returns "F32" for kFloat32. Throws CheckpointError for a type that the
/// format does not have.
std::string_view safetensors_dtype(torch::ScalarType dtype);

/// Returns the JSON text, padded with spaces to a multiple of 8 bytes. Throws
/// CheckpointError for a name that is used twice, reserved or not UTF-8.
std::string format_safetensors_header(const SafeTensorsHeader& header);

/// Parses the JSON text of the file at `path`. Its tensors fill `data_bytes`.
/// Throws CheckpointError unless the entries cover these without overlaps or
/// gaps, each with a size that fits its type and shape.
SafeTensorsHeader parse_safetensors_header(const std::string& path,
                                           std::string_view json,
                                           uint64_t data_bytes);

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
