#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <torch/types.h>

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

/// Limit set by the format.
inline constexpr uint64_t kMaxSafeTensorsHeader = 100'000'000;

/// Returns "F32" for kFloat32. Throws CheckpointError for a type that the
/// format does not have.
std::string_view safetensors_dtype(torch::ScalarType dtype);

/// Returns the JSON text, padded with spaces to a multiple of 8 bytes. Throws
/// CheckpointError for a name that is used twice, reserved or not UTF-8.
std::string format_safetensors_header(const SafeTensorsHeader& header);

/// Parses the JSON text of the file at `path`, whose tensors fill `data_bytes`.
/// Throws CheckpointError unless the entries cover these without overlaps or
/// gaps, each with a size that fits its type and shape.
SafeTensorsHeader parse_safetensors_header(const std::string& path,
                                           std::string_view json,
                                           uint64_t data_bytes);

}  // namespace lockstep
