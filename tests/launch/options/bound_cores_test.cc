#include "lockstep/launch/options/bound_cores.h"

#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/cores.h"

namespace lockstep::launch {
namespace {

using Cores = std::vector<int>;

TEST(BoundCores, AreSharedByTheWorkersThatHaveTheSameOnes) {
  const BoundCores cores{{{0, 1, 2, 3}, {4, 5}, {0, 1, 2, 3}}};
  EXPECT_EQ(cores.share(0), 2u);
  EXPECT_EQ(cores.share(1), 2u);
  const BoundCores crowded{{{7}, {7}}};
  EXPECT_EQ(crowded.share(1), 1u);
}

// A worker of Lockstep takes its slice of the job's cores by core_share().
TEST(BoundCores, HaveAnOrderInWhichEachWorkerGetsItsOwn) {
  const BoundCores cores{{{0, 1, 8, 9}, {2, 3}, {0, 1, 8, 9}}};
  const auto order = cores.by_share();
  ASSERT_EQ(order, (Cores{0, 1, 2, 3, 8, 9}));
  EXPECT_EQ(core_share(order, 2, 3), (Cores{8, 9}));
  const BoundCores with_rest{{{0, 1, 2}, {0, 1, 2}}};
  EXPECT_EQ(with_rest.by_share(), (Cores{0, 1, 2}));
}

TEST(BoundCores, HaveNoSuchOrderIfTheirSizesDiffer) {
  EXPECT_TRUE((BoundCores{{{0, 1, 2, 3}, {4}}}).by_share().empty());
  EXPECT_TRUE((BoundCores{{{0}, {0}}}).by_share().empty());
}

}  // namespace
}  // namespace lockstep::launch
