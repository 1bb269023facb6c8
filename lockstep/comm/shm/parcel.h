#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "lockstep/comm/shm/segment.h"

namespace lockstep::shm {

/// A message too large for a ring, in a segment of its own.
class Parcel {
 public:
  /// A copy of `data`. Throws CommError.
  explicit Parcel(std::span<const std::byte> data);
  SegmentAddress address() const { return segment_->address(); }
  /// Whether the receiver has copied it, or will never.
  bool is_taken() const;

  /// Copies the parcel at `address` to `out`, all of it, and tells its sender,
  /// who must be rung. An empty `out` refuses the parcel. Throws CommError if
  /// there is no parcel of that size.
  static void take(const SegmentAddress& address, std::span<std::byte> out);

 private:
  std::shared_ptr<const Segment> segment_;
};

}  // namespace lockstep::shm
