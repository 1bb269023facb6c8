#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "lockstep/shm/segment.h"

namespace lockstep::shm {

/// Segments of messages that were taken, kept for the next: to write pages
/// that are there takes a fraction of the time of new ones. Up to kMostBytes
/// of them. May be called by several threads.
class SpareSegments {
 public:
  static constexpr size_t kMostBytes = 128 << 20;

  /// One of `bytes` up to twice that; what is in it is not known. Throws
  /// CommError.
  std::shared_ptr<const Segment> take(size_t bytes);
  void give_back(std::shared_ptr<const Segment> segment);

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<const Segment>> spares_;  // the oldest first
  size_t bytes_ = 0;                                    // of all
};

}  // namespace lockstep::shm
