#include "lockstep/device/memory_account.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr int64_t kCacheSlackBytes = int64_t{64} << 20;

constinit std::array<MemoryAccount, kMaxSlices + 1> accounts;

void raise(std::atomic<int64_t>& highest, int64_t value) {
  int64_t seen = highest.load(std::memory_order_relaxed);
  while (seen < value && !highest.compare_exchange_weak(
                             seen, value, std::memory_order_relaxed)) {
  }
}

}  // namespace

void MemoryAccount::charge(int64_t bytes) {
  const int64_t live =
      live_bytes.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  raise(peak_bytes, live);
  raise(highest_bytes, live);
}

int64_t MemoryAccount::cache_limit() const {
  const int64_t highest = highest_bytes.load(std::memory_order_relaxed);
  const int64_t live = live_bytes.load(std::memory_order_relaxed);
  return std::max<int64_t>(0, highest + highest / 4 + kCacheSlackBytes - live);
}

MemoryStats MemoryAccount::stats() const {
  return {live_bytes.load(), peak_bytes.load(), cache.cached_bytes()};
}

MemoryAccount& account_of(int slice) {
  return accounts[static_cast<size_t>(slice - kHostIndex)];
}

MemoryAccount& account_of(const Device& device) {
  if (device.index < 0 || device.index >= kMaxSlices) {
    throw DeviceError(
        {.code = ErrorCode::kNoSuchDevice,
         .what = fmt::format("no account for {}", device.name()),
         .expected = fmt::format("cpu:0..cpu:{}", kMaxSlices - 1)});
  }
  return account_of(device.index);
}

}  // namespace lockstep
