#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::data {

/// Returns an IDX file of bytes with `sizes` in its header.
inline std::string idx_bytes(const std::vector<uint32_t>& sizes,
                             const std::string& bytes) {
  std::string file{0, 0, 8, static_cast<char>(sizes.size())};
  for (const uint32_t size : sizes) {
    for (const int shift : {24, 16, 8, 0}) {
      file += static_cast<char>(size >> shift);
    }
  }
  return file + bytes;
}

}  // namespace lockstep::data
