#include "lockstep/device/cuda/cuda.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/device/accelerator.h"
#include "lockstep/device/device.h"

namespace lockstep {
namespace {

TEST(Cuda, RefusesAGpuThatIsNotThere) {
  const int missing = cuda_device_count();
  EXPECT_THROW(cuda::properties(missing), DeviceError);
  const Device device{c10::kCUDA, missing, 0};
  EXPECT_THROW(accelerator::bind_thread(device), DeviceError);
  EXPECT_THROW(accelerator::memory_stats(device), DeviceError);
}

}  // namespace
}  // namespace lockstep
