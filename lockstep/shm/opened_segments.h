#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>

#include "lockstep/shm/segment.h"

namespace lockstep::shm {

/// A cache of open segments of other processes. A segment in which a message
/// came is kept open for later messages, up to SpareSegments::kMostBytes in
/// total. May be called by several threads.
class OpenedSegments {
 public:
  /// Works as Segment::open().
  std::shared_ptr<const Segment> open(const SegmentAddress& address);

 private:
  struct Opened {
    SegmentAddress address;
    std::shared_ptr<const Segment> segment;
  };
  std::mutex mutex_;
  std::list<Opened> opened_;  // most recently used first
  size_t bytes_ = 0;          // total size
};

}  // namespace lockstep::shm
