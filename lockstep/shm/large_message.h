#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "lockstep/shm/segment.h"

namespace lockstep::shm {

/// A pool of segments of messages that were taken, kept for the next messages.
/// Writing to pages that exist takes a fraction of the time of new pages. Keeps
/// up to kMaxBytes in total. May be called by several threads.
class SpareSegments {
 public:
  static constexpr size_t kMaxBytes = 128 << 20;

  /// Returns a segment of `bytes` to twice that, with unspecified content.
  /// Throws CommError.
  std::shared_ptr<const Segment> take(size_t bytes);
  void give_back(std::shared_ptr<const Segment> segment);

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<const Segment>> spares_;  // oldest first
  size_t bytes_ = 0;                                    // total size
};

/// A cache of open segments of other processes. A segment in which a message
/// came is kept open for later messages, up to SpareSegments::kMaxBytes in
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
