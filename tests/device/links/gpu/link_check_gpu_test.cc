#include <gtest/gtest.h>
#include <torch/types.h>

#include "lockstep/device/cuda/cuda.h"
#include "lockstep/device/device.h"
#include "lockstep/device/links/link_check.h"

namespace lockstep {
namespace {

TEST(CudaLinks, CarryWhatIsSent) {
  if (cuda_device_count() < 2) GTEST_SKIP() << "this machine has no two GPUs";
  const auto gpus = devices("cuda");
  for (const LinkFinding& finding : check_links(links_between(gpus), {})) {
    ADD_FAILURE() << finding.text();
  }
}

TEST(CudaLinks, ToTheHostAndBackCarryWhatIsSent) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "this machine has no GPU";
  const Device host, gpu{c10::kCUDA, 0, 0};
  for (const Link& link : {Link{host, gpu}, Link{gpu, host}}) {
    EXPECT_FALSE(check_copy({.link = link, .bytes = 1 << 20}, 0));
  }
  EXPECT_EQ(cuda::uuid(0).size(), 40U);
  EXPECT_GT(cuda::driver_version(), 0);
}

}  // namespace
}  // namespace lockstep
