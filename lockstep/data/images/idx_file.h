#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::data {

/// An array of bytes of any number of dimensions, in row-major order.
struct IdxArray {
  std::vector<int64_t> sizes;
  std::vector<uint8_t> bytes;
};

/// Reads a file in the IDX format of MNIST (LeCun), plain or gzipped: two zero
/// bytes, the type 8 (bytes), the number of dimensions, the size of each as a
/// big-endian word, then the bytes.
///
/// `sizes` says what is expected: a size, or kAnySize. Throws DataError naming
/// the file if it is anything else, is truncated, goes on after its end, or
/// would be larger than `most_bytes`: more than that is never unpacked.
IdxArray read_idx(const std::string& path, const std::vector<int64_t>& sizes,
                  int64_t most_bytes);

inline constexpr int64_t kAnySize = -1;

}  // namespace lockstep::data
