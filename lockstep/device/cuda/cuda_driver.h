#pragma once

#include <cstddef>
#include <string>

namespace lockstep {

/// CUDA's virtual memory functions from the driver's library, which is opened
/// when it is first needed. Names, types and numbers are those of cuda.h. A
/// build needs neither the header nor the driver.
struct CudaDriver {
  using Result = int;  // CUresult
  static constexpr Result kSuccess = 0;
  using Address = unsigned long long;  // CUdeviceptr
  using Memory = unsigned long long;   // CUmemGenericAllocationHandle

  struct Location {  // CUmemLocation
    int type = 1;    // CU_MEM_LOCATION_TYPE_DEVICE
    int id = 0;
  };
  struct AllocationProperties {  // CUmemAllocationProp
    int type = 1;                // CU_MEM_ALLOCATION_TYPE_PINNED
    int handle_types = 0;
    Location location;
    void* win32_metadata = nullptr;
    unsigned char flags[8] = {};
  };
  struct Access {  // CUmemAccessDesc
    Location location;
    int flags = 3;  // CU_MEM_ACCESS_FLAGS_PROT_READWRITE
  };

  Result (*granularity)(size_t* bytes, const AllocationProperties*,
                        int option) = nullptr;
  Result (*reserve)(Address*, size_t bytes, size_t alignment, Address wanted,
                    unsigned long long flags) = nullptr;
  Result (*create)(Memory*, size_t bytes, const AllocationProperties*,
                   unsigned long long flags) = nullptr;
  Result (*map)(Address, size_t bytes, size_t offset, Memory,
                unsigned long long flags) = nullptr;
  Result (*set_access)(Address, size_t bytes, const Access*,
                       size_t count) = nullptr;
  Result (*unmap)(Address, size_t bytes) = nullptr;
  Result (*release)(Memory) = nullptr;
  Result (*free_addresses)(Address, size_t bytes) = nullptr;
  Result (*error_text)(Result, const char**) = nullptr;

  /// Throws DeviceError if the library does not exist or lacks one of these
  /// functions.
  static CudaDriver open(const std::string& library = "libcuda.so.1");
  std::string describe(Result result) const;
};

}  // namespace lockstep
