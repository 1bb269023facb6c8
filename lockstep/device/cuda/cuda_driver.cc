#include "lockstep/device/cuda/cuda_driver.h"

#include <dlfcn.h>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

template <typename Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function != nullptr) return;
  throw DeviceError({.code = ErrorCode::kDeviceFailed,
                     .what = fmt::format("the GPU's driver has no {}", name),
                     .fix = "install a driver for CUDA 11 or later"});
}

}  // namespace

CudaDriver CudaDriver::open(const std::string& library) {
  // The library is never closed. CUDA's runtime keeps it open until the process
  // ends.
  void* opened = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (opened == nullptr) {
    throw DeviceError({.code = ErrorCode::kDeviceFailed,
                       .what = "can't open the GPU's driver",
                       .got = ::dlerror(),
                       .fix = "install NVIDIA's driver"});
  }
  CudaDriver driver;
  find(opened, "cuMemGetAllocationGranularity", driver.granularity);
  find(opened, "cuMemAddressReserve", driver.reserve);
  find(opened, "cuMemCreate", driver.create);
  find(opened, "cuMemMap", driver.map);
  find(opened, "cuMemSetAccess", driver.set_access);
  find(opened, "cuMemUnmap", driver.unmap);
  find(opened, "cuMemRelease", driver.release);
  find(opened, "cuMemAddressFree", driver.free_addresses);
  find(opened, "cuGetErrorString", driver.error_text);
  return driver;
}

std::string CudaDriver::describe(Result result) const {
  const char* text = nullptr;
  if (error_text(result, &text) == kSuccess && text != nullptr) return text;
  return fmt::format("error {}", result);
}

}  // namespace lockstep
