#pragma once

#include <atomic>
#include <cstdint>
#include <type_traits>

#include "lockstep/device/block_cache.h"
#include "lockstep/device/device.h"
#include "lockstep/device/memory.h"

namespace lockstep {

/// Bytes of the tensors of one slice, or of the host, and its freed blocks. A
/// cache line of its own each: slices count from different cores.
struct alignas(64) MemoryAccount {
  std::atomic<int64_t> live_bytes{0};
  std::atomic<int64_t> peak_bytes{0};
  std::atomic<int64_t> highest_bytes{0};  ///< a peak that is never reset
  alignas(64) BlockCache cache;

  void charge(int64_t bytes);
  /// Live and cached bytes together stay within a quarter above the peak.
  int64_t cache_limit() const;
  MemoryStats stats() const;
};
// Tensors outlive everything else, so nothing here may be destroyed at exit.
static_assert(std::is_trivially_destructible_v<MemoryAccount>);

/// In place of a slice's number, for the host's account.
inline constexpr int kHostIndex = -1;

/// `slice` is kHostIndex or below kMaxSlices.
MemoryAccount& account_of(int slice);
/// Throws DeviceError for a slice that has no account.
MemoryAccount& account_of(const Device& device);
/// The slice that this thread's allocations are charged to, or kHostIndex.
int charged_slice();

}  // namespace lockstep
