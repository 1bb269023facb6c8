#include "lockstep/launch/workers/core_share.h"

#include <vector>

#include <gtest/gtest.h>

namespace lockstep::launch {
namespace {

using Cores = std::vector<int>;

TEST(CoreShare, CutsEqualPartsInOrderOfRank) {
  const Cores cores{2, 3, 5, 7, 8};
  EXPECT_EQ(core_share(cores, 0, 1), cores);
  EXPECT_EQ(core_share(cores, 0, 2), (Cores{2, 3}));
  EXPECT_EQ(core_share(cores, 1, 2), (Cores{5, 7}));
  EXPECT_EQ(core_share(cores, 4, 5), (Cores{8}));
}

TEST(CoreShare, SharesInTurnsWithMoreWorkersThanCores) {
  const Cores cores{4, 6};
  for (int rank = 0; rank < 5; ++rank) {
    EXPECT_EQ(core_share(cores, rank, 5),
              (Cores{cores[static_cast<size_t>(rank % 2)]}));
  }
}

}  // namespace
}  // namespace lockstep::launch
