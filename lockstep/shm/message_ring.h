#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "lockstep/shm/futex.h"
#include "lockstep/shm/segment.h"

namespace lockstep::shm {

/// Largest size of a message that is stored in the ring itself. For a larger
/// message the ring has the address of the segment that its sender created.
inline constexpr size_t kInlineBytes = 4096;
inline constexpr uint32_t kRingEntries = 16;

/// The description of a message, without its data.
struct MessageHead {
  int32_t tag = 0;
  uint64_t bytes = 0;
  SegmentAddress address{};  ///< set if bytes > kInlineBytes
  bool is_inline() const { return bytes <= kInlineBytes; }
};

/// The messages in transit from one rank to another, in the order sent. It is
/// in zeroed shared memory. One writer and one reader may use it at a time.
struct MessageRing {
  struct Entry {
    // Atomic, so that each is read only once. The peer could change a value
    // between two reads.
    std::atomic<int32_t> tag;
    std::atomic<int32_t> pid;
    std::atomic<int32_t> fd;
    std::atomic<uint64_t> bytes;
    std::atomic<uint64_t> inode;
    std::atomic<uint64_t> segment_bytes;
    alignas(64) std::array<std::byte, kInlineBytes> payload;
  };
  alignas(64) std::atomic<uint32_t> written;  ///< total number of messages
  std::atomic<uint32_t> wants_space;          ///< 1: the writer waits for space
  alignas(64) std::atomic<uint32_t> read;     ///< total number of messages
  std::array<Entry, kRingEntries> entries;
};

/// The sender's end of a ring. Throws CommError if the other end's counter is
/// not possible.
class RingWriter {
 public:
  RingWriter(MessageRing& ring, EventCount& receiver)
      : ring_(&ring), receiver_(&receiver) {}
  /// Returns whether there is space for a message. If not, the reader advances
  /// the sender's event count once there is.
  bool has_space();
  /// Adds a message. `payload` is the data of an inline message. Requires
  /// has_space().
  void put(const MessageHead& head, std::span<const std::byte> payload);

 private:
  bool is_full() const;

  MessageRing* ring_;
  EventCount* receiver_;
  uint32_t written_ = 0;
};

/// The receiver's end of a ring. Throws CommError if the other end's counter is
/// not possible.
class RingReader {
 public:
  RingReader(MessageRing& ring, EventCount& sender)
      : ring_(&ring), sender_(&sender) {}
  /// Returns the oldest message, if there is one.
  std::optional<MessageHead> front() const;
  /// Copies the inline data of front() to `out`, at most `out.size()` bytes.
  void copy_front(std::span<std::byte> out) const;
  void pop();

 private:
  MessageRing* ring_;
  EventCount* sender_;
  uint32_t read_ = 0;
};

}  // namespace lockstep::shm
