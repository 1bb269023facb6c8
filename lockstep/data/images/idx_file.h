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
/// `sizes` has the expected sizes; kAnySize matches any. Throws DataError
/// naming the file if it is anything else, is truncated, continues after its
/// end, or would be larger than `most_bytes`. No more than that is ever
/// decompressed.
IdxArray read_idx(const std::string& path, const std::vector<int64_t>& sizes,
                  int64_t most_bytes);

inline constexpr int64_t kAnySize = -1;

}  // namespace lockstep::data
