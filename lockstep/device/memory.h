#pragma once

#include <cstdint>

#include "lockstep/device/device.h"

namespace lockstep {

/// A host is cut into so many slices at most: each has an account.
inline constexpr int kMaxSlices = 256;

/// Bytes of tensors, as one account: of the host, or of one slice of it.
/// Sizes are rounded up to 64 bytes.
struct MemoryStats {
  int64_t live_bytes = 0;    ///< allocated and not freed
  int64_t peak_bytes = 0;    ///< highest live_bytes since the last reset
  int64_t cached_bytes = 0;  ///< freed, kept for the next allocation
};

/// Replaces LibTorch's CPU allocator by one that keeps an account per slice
/// and keeps freed blocks for reuse (the kernel otherwise maps and zeroes the
/// pages of every large tensor again at each step). Idempotent; tensors that
/// exist already stay valid and are on no account. Called by Worker.
///
/// Running out of memory throws DeviceError from the operator that asked.
void install_accounting_allocator();
bool has_accounting_allocator();

/// Charges what this thread allocates to `device` while it lives. Without one
/// a thread's allocations go to the host's account, which stands for memory
/// that all slices share. A block is charged to the account it was made on
/// until it is freed, on whatever thread. Throws DeviceError for a slice
/// beyond kMaxSlices; does nothing for a CUDA device.
class MemoryScope {
 public:
  explicit MemoryScope(const Device& device);
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

 private:
  Device previous_;
};

/// The account of `device` (CUDA: of LibTorch's caching allocator).
MemoryStats memory_stats(const Device& device);
/// The account of memory that belongs to no slice.
MemoryStats host_memory_stats();
/// Sets every peak to what is live now.
void reset_peak_memory();
/// Returns cached blocks of all accounts to the system. Those in donated memory
/// (DonatedMemory) stay where they are.
void release_cached_memory();

}  // namespace lockstep
