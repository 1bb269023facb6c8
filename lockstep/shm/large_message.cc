#include "lockstep/shm/large_message.h"

#include <atomic>
#include <cstdint>
#include <cstring>
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
