#include "lockstep/base/core_share.h"

#include <vector>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

using Cores = std::vector<int>;

TEST(CoreShare, CutsEqualPartsInOrder) {
  const Cores cores{2, 3, 5, 7, 8};
  EXPECT_EQ(core_share(cores, 0, 1), cores);
  EXPECT_EQ(core_share(cores, 0, 2), (Cores{2, 3}));
  EXPECT_EQ(core_share(cores, 1, 2), (Cores{5, 7}));
  EXPECT_EQ(core_share(cores, 4, 5), (Cores{8}));
}

TEST(CoreShare, GivesCoresInTurnsWithMoreSharesThanCores) {
  const Cores cores{4, 6};
  for (size_t index = 0; index < 5; ++index) {
    EXPECT_EQ(core_share(cores, index, 5), (Cores{cores[index % 2]}));
  }
}

}  // namespace
}  // namespace lockstep
