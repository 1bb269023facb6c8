#pragma once

#include <cstdint>

namespace lockstep {

/// A range of bytes in a tensor's memory, relative to its start: [begin, end).
struct ByteRange {
  int64_t begin = 0;
  int64_t end = 0;
};

}  // namespace lockstep
