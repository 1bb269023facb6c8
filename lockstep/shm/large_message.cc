#include "lockstep/shm/large_message.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::shm {
namespace {

// The header before the data, which starts at a cache line.
struct Cover {
  alignas(64) std::atomic<uint32_t> is_taken;
};

Cover& cover_of(const Segment& segment) {
  return *reinterpret_cast<Cover*>(segment.bytes().data());
}

}  // namespace

std::shared_ptr<const Segment> SpareSegments::take(size_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    const auto found =
        std::find_if(spares_.begin(), spares_.end(), [&](const auto& spare) {
          return spare->bytes().size() >= bytes &&
                 spare->bytes().size() / 2 <= bytes;
        });
    if (found != spares_.end()) {
      auto segment = std::move(*found);
      spares_.erase(found);
      bytes_ -= segment->bytes().size();
      return segment;
    }
  }
  return Segment::create(bytes);
}

void SpareSegments::give_back(std::shared_ptr<const Segment> segment) {
  const size_t bytes = segment->bytes().size();
  if (bytes > kMaxBytes) return;
  const std::lock_guard lock(mutex_);
  while (bytes_ + bytes > kMaxBytes) {
    bytes_ -= spares_.front()->bytes().size();
    spares_.erase(spares_.begin());
  }
  bytes_ += bytes;
  spares_.push_back(std::move(segment));
}

std::shared_ptr<const Segment> OpenedSegments::open(
    const SegmentAddress& address) {
  // Segments of this process are found anyway and need not be kept open.
  if (address.pid == ::getpid()) return Segment::open(address);
  const std::lock_guard lock(mutex_);
  // An inode number is not reused while the inode is mapped.
  const auto found = std::find_if(
      opened_.begin(), opened_.end(),
      [&](const Opened& opened) { return opened.address == address; });
  if (found != opened_.end()) {
    opened_.splice(opened_.begin(), opened_, found);
    return opened_.front().segment;
  }
  auto segment = Segment::open(address);
  const size_t bytes = segment->bytes().size();
  if (bytes > SpareSegments::kMaxBytes) return segment;
  opened_.push_front({address, segment});
  bytes_ += bytes;
  while (bytes_ > SpareSegments::kMaxBytes) {
    bytes_ -= opened_.back().segment->bytes().size();
    opened_.pop_back();
  }
  return segment;
}

LargeMessage::LargeMessage(std::span<const std::byte> data,
                           SpareSegments& spares)
    : spares_(&spares), segment_(spares.take(sizeof(Cover) + data.size())) {
  cover_of(*segment_).is_taken.store(0);
  std::memcpy(segment_->bytes().data() + sizeof(Cover), data.data(),
              data.size());
}

LargeMessage::~LargeMessage() {
  // A message that was not taken may still be read, so its segment is not
  // reused.
  if (is_taken()) spares_->give_back(std::move(segment_));
}

bool LargeMessage::is_taken() const {
  return cover_of(*segment_).is_taken.load();
}

void LargeMessage::take(const SegmentAddress& address, std::span<std::byte> out,
                        OpenedSegments& opened) {
  const auto segment = opened.open(address);
  const auto bytes = segment->bytes();
  if (bytes.size() < sizeof(Cover) ||
      bytes.size() - sizeof(Cover) < out.size()) {
    throw CommError(
        {.code = ErrorCode::kNoSharedMemory,
         .what = "a message's shared memory is too small for it",
         .expected = fmt::format("{} bytes and its cover", out.size()),
         .got = fmt::format("{} bytes", bytes.size())});
  }
  if (!out.empty()) {
    std::memcpy(out.data(), bytes.data() + sizeof(Cover), out.size());
  }
  cover_of(*segment).is_taken.store(1);
}

}  // namespace lockstep::shm
