#pragma once

#include <cstdint>

#include "lockstep/device/device.h"

namespace lockstep {

/// Maximum number of slices of a host. Each slice has an account.
inline constexpr int kMaxSlices = 256;

/// Bytes of tensors in one account: the host's or a slice's. Sizes are rounded
/// up to 64 bytes.
struct MemoryStats {
  int64_t live_bytes = 0;    ///< allocated and not freed
  int64_t peak_bytes = 0;    ///< highest live_bytes since the last reset
  int64_t cached_bytes = 0;  ///< freed and kept for the next allocation
};

/// Replaces LibTorch's CPU allocator with one that has an account per slice and
/// keeps freed blocks for reuse (otherwise the kernel maps and zeroes the pages
/// of every large tensor again at each step). May be called repeatedly.
/// Existing tensors stay valid and are not in any account. Called by Worker.
///
/// If memory runs out, the operator that asked for it throws DeviceError.
void install_accounting_allocator();
bool has_accounting_allocator();

/// While a scope exists, allocations of this thread are charged to `device`.
/// Without a scope, they are charged to the host's account, which stands for
/// memory that all slices share. A block is charged to the account that it was
/// allocated in until any thread frees it. Throws DeviceError for a slice
/// beyond kMaxSlices. Does nothing for a CUDA device.
class MemoryScope {
 public:
  explicit MemoryScope(const Device& device);
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

 private:
  Device previous_;
};

/// Returns the account of `device` (CUDA: that of LibTorch's caching
/// allocator).
MemoryStats memory_stats(const Device& device);
/// Returns the account of memory that belongs to no slice.
MemoryStats host_memory_stats();
/// Sets every peak to the bytes that are live now.
void reset_peak_memory();
/// Returns cached blocks of all accounts to the system. Blocks in memory that
/// ranks share are kept.
void release_cached_memory();

}  // namespace lockstep
