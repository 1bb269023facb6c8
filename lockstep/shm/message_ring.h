#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "lockstep/shm/event_count.h"
#include "lockstep/shm/segment.h"

namespace lockstep::shm {

/// A message of up to so many bytes lies in the ring itself; of a larger one
/// there is the address of the segment that its sender made for it.
inline constexpr size_t kInlineBytes = 4096;
inline constexpr uint32_t kRingEntries = 16;

/// What the receiver knows of a message before its data.
struct MessageHead {
  int32_t tag = 0;
  uint64_t bytes = 0;
  SegmentAddress address{};  ///< where bytes > kInlineBytes
  bool is_inline() const { return bytes <= kInlineBytes; }
};

/// The messages on their way from one rank to another, in the order sent. Lies
/// in zeroed shared memory. One writer and one reader at a time.
struct MessageRing {
  struct Entry {
    // Atomic, so that each is read once: the peer could change it in between.
    std::atomic<int32_t> tag;
    std::atomic<int32_t> pid;
    std::atomic<int32_t> fd;
    std::atomic<uint64_t> bytes;
    std::atomic<uint64_t> inode;
    std::atomic<uint64_t> segment_bytes;
    alignas(64) std::array<std::byte, kInlineBytes> payload;
  };
  alignas(64) std::atomic<uint32_t> written;  ///< messages, ever
  std::atomic<uint32_t> wants_space;       ///< the writer waits for the reader
  alignas(64) std::atomic<uint32_t> read;  ///< messages, ever
  std::array<Entry, kRingEntries> entries;
};

/// The sender's end. Throws CommError where the other end's words can't be.
class RingWriter {
 public:
  RingWriter(MessageRing& ring, EventCount& receiver)
      : ring_(&ring), receiver_(&receiver) {}
  /// If there is none, the reader rings the sender's bell when there is.
  bool has_space();
  /// `payload` is the data of an inline message. Needs has_space().
  void put(const MessageHead& head, std::span<const std::byte> payload);

 private:
  bool is_full() const;

  MessageRing* ring_;
  EventCount* receiver_;
  uint32_t written_ = 0;
};

/// The receiver's end. Throws CommError where the other end's words can't be.
class RingReader {
 public:
  RingReader(MessageRing& ring, EventCount& sender)
      : ring_(&ring), sender_(&sender) {}
  /// The oldest message, if there is any.
  std::optional<MessageHead> front() const;
  /// Copies the inline data of front(), all of `out`.
  void copy_front(std::span<std::byte> out) const;
  void pop();

 private:
  MessageRing* ring_;
  EventCount* sender_;
  uint32_t read_ = 0;
};

}  // namespace lockstep::shm
