#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/device/byte_range.h"
#include "lockstep/device/cuda_driver.h"

namespace lockstep {

/// Addresses on a GPU for a whole tensor, of which only what is used has
/// memory.
///
/// The driver maps memory by granules (2 MiB). Those that a used range touches
/// have memory of their own. All others are one granule's, mapped many times:
/// what is written to them is lost, and what is read is anything, but neither
/// is an error, as it would be at an address without memory.
class SparseGpuMemory {
 public:
  /// `used` is in order. Throws DeviceError if the GPU has not that much.
  SparseGpuMemory(const CudaDriver& driver, int gpu, int64_t bytes,
                  std::span<const ByteRange> used);
  /// Nothing that was given to the GPU may still use the memory.
  ~SparseGpuMemory();
  SparseGpuMemory(const SparseGpuMemory&) = delete;
  SparseGpuMemory& operator=(const SparseGpuMemory&) = delete;

  void* data() const { return reinterpret_cast<void*>(begin_); }
  /// What it takes of the GPU.
  int64_t memory_bytes() const { return memory_bytes_; }

  /// What all of them in this process take of GPU `gpu`.
  static int64_t live_bytes(int gpu);

 private:
  void check(CudaDriver::Result result, const char* act);
  void map(std::span<const ByteRange> used);
  CudaDriver::Memory create(size_t bytes);
  void map_at(size_t offset, size_t bytes, CudaDriver::Memory memory);
  void free() noexcept;

  CudaDriver driver_;
  CudaDriver::AllocationProperties properties_;
  size_t granule_ = 0;
  CudaDriver::Address begin_ = 0;
  size_t reserved_ = 0;  // bytes of addresses
  std::vector<CudaDriver::Memory> memories_;
  std::vector<ByteRange> mapped_;
  int64_t memory_bytes_ = 0;
};

}  // namespace lockstep
