#include "lockstep/shm/message_ring.h"

#include <algorithm>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::shm {
namespace {

void check_count(uint32_t messages) {
  if (messages <= kRingEntries) return;
  throw CommError(
      {.code = ErrorCode::kNoSharedMemory,
       .what = "the messages of a rank are overwritten",
       .expected = fmt::format("up to {} in the ring", kRingEntries),
       .got = fmt::format("{}", messages),
       .fix = "look for a process that writes where it must not"});
}

}  // namespace

bool RingWriter::is_full() const {
  const uint32_t waiting = written_ - ring_->read.load();
  check_count(waiting);
  return waiting == kRingEntries;
}

bool RingWriter::has_space() {
  if (!is_full()) return true;
  // Check again after setting the flag. The reader may have read the flag just
  // before.
  ring_->wants_space.store(1);
  return !is_full();
}

void RingWriter::put(const MessageHead& head,
                     std::span<const std::byte> payload) {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  auto& entry = ring_->entries[written_ % kRingEntries];
  entry.tag.store(head.tag, kRelaxed);
  entry.bytes.store(head.bytes, kRelaxed);
  entry.pid.store(head.address.pid, kRelaxed);
  entry.fd.store(head.address.fd, kRelaxed);
  entry.inode.store(head.address.inode, kRelaxed);
  entry.segment_bytes.store(head.address.bytes, kRelaxed);
  std::copy(payload.begin(), payload.end(), entry.payload.begin());
  ring_->written.store(++written_);
  receiver_->advance();
}

std::optional<MessageHead> RingReader::front() const {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  const uint32_t waiting = ring_->written.load() - read_;
  check_count(waiting);
  if (waiting == 0) return std::nullopt;
  const auto& entry = ring_->entries[read_ % kRingEntries];
  return MessageHead{.tag = entry.tag.load(kRelaxed),
                     .bytes = entry.bytes.load(kRelaxed),
                     .address = {.pid = entry.pid.load(kRelaxed),
                                 .fd = entry.fd.load(kRelaxed),
                                 .inode = entry.inode.load(kRelaxed),
                                 .bytes = entry.segment_bytes.load(kRelaxed)}};
}

void RingReader::copy_front(std::span<std::byte> out) const {
  const auto& payload = ring_->entries[read_ % kRingEntries].payload;
  std::copy_n(payload.begin(), std::min(out.size(), payload.size()),
              out.begin());
}

void RingReader::pop() {
  ring_->read.store(++read_);
  if (ring_->wants_space.load() == 0) return;
  ring_->wants_space.store(0);
  sender_->advance();
}

}  // namespace lockstep::shm
