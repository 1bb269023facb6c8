#include "lockstep/device/cuda.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

TEST(Cuda, RefusesAGpuThatIsNotThere) {
  const int missing = cuda::device_count();
  EXPECT_THROW(cuda::properties(missing), DeviceError);
  EXPECT_THROW(cuda::bind_thread(missing), DeviceError);
  EXPECT_THROW(cuda::memory_stats(missing), DeviceError);
}

}  // namespace
}  // namespace lockstep
