#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "lockstep/shm/opened_segments.h"
#include "lockstep/shm/segment.h"
#include "lockstep/shm/spare_segments.h"

namespace lockstep::shm {

/// A message too large for a ring, in a segment of its own.
class LargeMessage {
 public:
  /// A copy of `data`, in one of `spares`, which gets it back if it was taken.
  /// Throws CommError.
  LargeMessage(std::span<const std::byte> data, SpareSegments& spares);
  ~LargeMessage();
  LargeMessage(const LargeMessage&) = delete;
  LargeMessage& operator=(const LargeMessage&) = delete;

  SegmentAddress address() const { return segment_->address(); }
  /// Whether the receiver has copied it, or will never.
  bool is_taken() const;

  /// Copies the message at `address` to `out`, all of it, and tells its sender,
  /// who must be rung. An empty `out` refuses the message. Throws CommError if
  /// there is no message of that size.
  static void take(const SegmentAddress& address, std::span<std::byte> out,
                   OpenedSegments& opened);

 private:
  SpareSegments* spares_;
  std::shared_ptr<const Segment> segment_;
};

}  // namespace lockstep::shm
