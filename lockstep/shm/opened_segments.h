#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>

#include "lockstep/shm/segment.h"

namespace lockstep::shm {

/// Segments of other processes that messages came in, kept open for the next
/// messages in them. Up to SpareSegments::kMostBytes. May be called by several
/// threads.
class OpenedSegments {
 public:
  /// As Segment::open().
  std::shared_ptr<const Segment> open(const SegmentAddress& address);

 private:
  struct Opened {
    SegmentAddress address;
    std::shared_ptr<const Segment> segment;
  };
  std::mutex mutex_;
  std::list<Opened> opened_;  // the one that was used last comes first
  size_t bytes_ = 0;          // of all
};

}  // namespace lockstep::shm
