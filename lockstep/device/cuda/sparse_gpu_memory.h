#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/base/byte_range.h"
#include "lockstep/device/cuda/cuda_driver.h"

namespace lockstep {

/// Address range on a GPU for a whole tensor, in which only the used ranges
/// have memory.
///
/// The driver maps memory in granules (2 MiB). Granules that overlap a used
/// range have their own memory. All others are mappings of one shared granule:
/// writes to them are lost and reads return arbitrary values, but neither is an
/// error, as it would be at an address without memory.
class SparseGpuMemory {
 public:
  /// `used` must be in order. Throws DeviceError if the GPU has not enough
  /// memory.
  SparseGpuMemory(const CudaDriver& driver, int gpu, int64_t bytes,
                  std::span<const ByteRange> used);
  /// No work that was given to the GPU may still use the memory.
  ~SparseGpuMemory();
  SparseGpuMemory(const SparseGpuMemory&) = delete;
  SparseGpuMemory& operator=(const SparseGpuMemory&) = delete;

  void* data() const { return reinterpret_cast<void*>(begin_); }
  /// Returns the bytes of GPU memory that this object takes.
  int64_t memory_bytes() const { return memory_bytes_; }

  /// Returns the bytes that all objects in this process take on GPU `gpu`.
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
