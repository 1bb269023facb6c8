#pragma once

#include <atomic>
#include <cstdint>
#include <type_traits>

#include "lockstep/device/block_cache.h"
#include "lockstep/device/device.h"
#include "lockstep/device/memory.h"

namespace lockstep {

/// Byte counts of the tensors of one slice or of the host, and the cache of
/// freed blocks. Each account is aligned to cache lines, because slices count
/// on different cores.
struct alignas(64) MemoryAccount {
  std::atomic<int64_t> live_bytes{0};
  std::atomic<int64_t> peak_bytes{0};
  std::atomic<int64_t> highest_bytes{0};  ///< a peak that is never reset
  alignas(64) BlockCache cache;

  void charge(int64_t bytes);
  /// Returns the limit of the cache. Live and cached bytes together stay within
  /// a quarter above the peak.
  int64_t cache_limit() const;
  MemoryStats stats() const;
};
// Tensors outlive everything else, so nothing here may be destroyed at exit.
static_assert(std::is_trivially_destructible_v<MemoryAccount>);

/// Slice number of the host's account.
inline constexpr int kHostIndex = -1;

/// `slice` must be kHostIndex or below kMaxSlices.
MemoryAccount& account_of(int slice);
/// Throws DeviceError for a slice without an account.
MemoryAccount& account_of(const Device& device);
/// Returns the slice that this thread's allocations are charged to, or
/// kHostIndex.
int charged_slice();

}  // namespace lockstep
