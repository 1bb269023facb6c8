#include "lockstep/base/host_identity.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(KernelIdentity, IsTheSameEachTime) {
  EXPECT_EQ(boot_id().size(), 36u) << "a UUID: " << boot_id();
  EXPECT_EQ(boot_id(), boot_id());
  EXPECT_TRUE(namespace_id("net").starts_with("net:[")) << namespace_id("net");
  EXPECT_EQ(namespace_id("none"), "none:?");
}

}  // namespace
}  // namespace lockstep
