#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "lockstep/shm/segment.h"

namespace lockstep::shm {

/// A pool of segments of messages that were taken, kept for the next messages.
/// Writing to pages that exist takes a fraction of the time of new pages. Keeps
/// up to kMostBytes in total. May be called by several threads.
class SpareSegments {
 public:
  static constexpr size_t kMostBytes = 128 << 20;

  /// Returns a segment of `bytes` to twice that, with unspecified content.
  /// Throws CommError.
  std::shared_ptr<const Segment> take(size_t bytes);
  void give_back(std::shared_ptr<const Segment> segment);

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<const Segment>> spares_;  // oldest first
  size_t bytes_ = 0;                                    // total size
};

}  // namespace lockstep::shm
