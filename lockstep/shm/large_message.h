#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "lockstep/shm/opened_segments.h"
#include "lockstep/shm/segment.h"
#include "lockstep/shm/spare_segments.h"

namespace lockstep::shm {

/// A message that is too large for a ring, in its own segment.
class LargeMessage {
 public:
  /// Copies `data` to a segment from `spares`. The destructor gives the segment
  /// back if the message was taken. Throws CommError.
  LargeMessage(std::span<const std::byte> data, SpareSegments& spares);
  ~LargeMessage();
  LargeMessage(const LargeMessage&) = delete;
  LargeMessage& operator=(const LargeMessage&) = delete;

  SegmentAddress address() const { return segment_->address(); }
  /// Returns whether the receiver has copied or refused the message.
  bool is_taken() const;

  /// Copies the whole message at `address` to `out` and marks it as taken. The
  /// caller must wake the sender. An empty `out` refuses the message. Throws
  /// CommError if there is no message of that size.
  static void take(const SegmentAddress& address, std::span<std::byte> out,
                   OpenedSegments& opened);

 private:
  SpareSegments* spares_;
  std::shared_ptr<const Segment> segment_;
};

}  // namespace lockstep::shm
