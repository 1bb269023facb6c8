#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::sim {

/// Number of bytes of address space of each device. Pages are only backed once
/// they are written.
constexpr size_t kSpaceBytes = size_t{1} << 36;

/// The memory of all simulated devices: one file in memory that is mapped
/// twice. Tensors hold addresses of the first mapping. Its pages are not
/// accessible: a program that touches device memory from the host faults, as it
/// does with a GPU. Kernels use the second mapping.
class DeviceMemory {
 public:
  static DeviceMemory& get();

  /// Returns the start of the space of device `index` in the first mapping.
  std::byte* space(int index) const;
  /// Returns the address at which a kernel finds `address`. Throws
  /// std::logic_error for an address that is not of a device.
  std::byte* for_kernel(const void* address) const;
  /// Returns the device that `address` belongs to, or -1.
  int device_of(const void* address) const;
  /// Gives the whole pages of a block back to the system. They read as zeros.
  void discard(std::byte* address, size_t bytes) const;

 private:
  DeviceMemory();

  std::byte* outside_ = nullptr;  // not accessible
  std::byte* inside_ = nullptr;   // for kernels
};

}  // namespace lockstep::sim
