#pragma once

#include <cstdint>

namespace lockstep {

/// Bytes of a tensor's memory, from its start: [begin, end).
struct ByteRange {
  int64_t begin = 0;
  int64_t end = 0;
};

}  // namespace lockstep
