#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "lockstep/shm/opened_segments.h"
#include "lockstep/shm/segment.h"
#include "lockstep/shm/spare_segments.h"

namespace lockstep::shm {

/// A message too large for a ring, in a segment of its own.
class Parcel {
 public:
  /// A copy of `data`, in one of `spares`, which gets it back if it was taken.
  /// Throws CommError.
  Parcel(std::span<const std::byte> data, SpareSegments& spares);
  ~Parcel();
  Parcel(const Parcel&) = delete;
  Parcel& operator=(const Parcel&) = delete;

  SegmentAddress address() const { return segment_->address(); }
  /// Whether the receiver has copied it, or will never.
  bool is_taken() const;

  /// Copies the parcel at `address` to `out`, all of it, and tells its sender,
  /// who must be rung. An empty `out` refuses the parcel. Throws CommError if
  /// there is no parcel of that size.
  static void take(const SegmentAddress& address, std::span<std::byte> out,
                   OpenedSegments& opened);

 private:
  SpareSegments* spares_;
  std::shared_ptr<const Segment> segment_;
};

}  // namespace lockstep::shm
