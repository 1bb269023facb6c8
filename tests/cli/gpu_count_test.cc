// The launcher counts GPUs without LibTorch, and must find as many as LibTorch.
#include <gtest/gtest.h>

#include "lockstep/base/cores.h"
#include "lockstep/base/error.h"
#include "lockstep/device/device.h"
#include "lockstep/launch/options/option_values.h"

namespace lockstep::launch {
namespace {

TEST(NprocOfGpus, IsTheNumberThatLibTorchFinds) {
  const int cores = static_cast<int>(allowed_cores().size());
  const int gpus = cuda_device_count();
  EXPECT_EQ(parse_nproc("auto"), gpus > 0 ? gpus : cores);
  if (gpus == 0) {
    EXPECT_THROW(parse_nproc("gpu"), LaunchError);
  } else {
    EXPECT_EQ(parse_nproc("gpu"), gpus);
  }
}

}  // namespace
}  // namespace lockstep::launch
