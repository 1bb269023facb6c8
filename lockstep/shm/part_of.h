#pragma once

#include <algorithm>
#include <cstddef>

#include "lockstep/base/round_up.h"

namespace lockstep::shm {

inline constexpr size_t kCacheLine = 64;

/// Returns part `index` of `count` of a span of bytes. Every part has whole
/// cache lines, except the last, so no two ranks write to the same line. The
/// size of a line must be a multiple of the element size.
template <typename Span>
Span part_of(Span data, size_t index, size_t count) {
  const size_t lines = round_up(data.size(), kCacheLine) / kCacheLine;
  const auto cut = [&](size_t k) {
    return std::min(data.size(), lines * k / count * kCacheLine);
  };
  return data.subspan(cut(index), cut(index + 1) - cut(index));
}

}  // namespace lockstep::shm
