#include "lockstep/base/cores.h"

#include <algorithm>
#include <limits>
#include <sched.h>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "tests/base/is_error.h"
#include "tests/base/temporary_folder.h"

namespace lockstep {
namespace {

TEST(AllowedCores, AreSortedAndInTheAffinityMask) {
  const auto& cores = allowed_cores();
  ASSERT_FALSE(cores.empty());
  EXPECT_TRUE(std::is_sorted(cores.begin(), cores.end()));
  cpu_set_t mask;
  ASSERT_EQ(::sched_getaffinity(0, sizeof mask, &mask), 0);
  for (const int core : cores) {
    EXPECT_TRUE(CPU_ISSET(static_cast<size_t>(core), &mask)) << core;
  }
}

TEST(PinThread, MovesTheThreadAndOnlyIt) {
  const int core = allowed_cores().back();
  int where = -1, count = 0;
  std::thread([&] {
    pin_thread({core});
    where = ::sched_getcpu();
    cpu_set_t mask;
    ::sched_getaffinity(0, sizeof mask, &mask);
    count = CPU_COUNT(&mask);
  }).join();
  EXPECT_EQ(where, core);
  EXPECT_EQ(count, 1);
  cpu_set_t mask;
  ASSERT_EQ(::sched_getaffinity(0, sizeof mask, &mask), 0);
  EXPECT_GE(static_cast<size_t>(CPU_COUNT(&mask)), allowed_cores().size());
}

TEST(PinThread, NamesTheCoresThatDoNotExist) {
  const auto message = error_of<IoError>([] { pin_thread({99998, 99999}); });
  EXPECT_TRUE(is_error(message, ErrorCode::kDeviceFailed,
                       {"99998, 99999", std::to_string(allowed_cores()[0])}));
  EXPECT_THROW(pin_thread({-1}), IoError);
  EXPECT_THROW(pin_thread({}), IoError);
}

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

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

class CpuQuota : public testing::Test {
 protected:
  void groups(const std::string& text) {
    write_text(root_.path("proc/self/cgroup"), text);
  }
  void file(const std::string& name, const std::string& text) {
    write_text(root_.path("sys/fs/cgroup/" + name), text);
  }
  double quota() const { return cgroup_cpu_quota(root_.path()); }

 private:
  TemporaryFolder root_;
};

TEST_F(CpuQuota, IsInfiniteWithoutControlGroups) {
  EXPECT_EQ(quota(), kNoLimit);
  groups("0::/\n");
  EXPECT_EQ(quota(), kNoLimit);
}

TEST_F(CpuQuota, ReadsVersion2) {
  groups("0::/user/job\n");
  file("user/job/cpu.max", "150000 100000\n");
  EXPECT_DOUBLE_EQ(quota(), 1.5);
  file("user/job/cpu.max", "max 100000\n");
  EXPECT_EQ(quota(), kNoLimit);
}

TEST_F(CpuQuota, TakesTheTightestGroupAround) {
  groups("0::/user/job\n");
  file("user/job/cpu.max", "800000 100000\n");
  file("user/cpu.max", "200000 100000\n");
  EXPECT_DOUBLE_EQ(quota(), 2);
}

TEST_F(CpuQuota, ReadsVersion1) {
  groups("2:cpuacct,cpu:/docker/4f\n1:memory:/docker/4f\n");
  file("cpuacct,cpu/docker/4f/cpu.cfs_quota_us", "300000\n");
  file("cpuacct,cpu/docker/4f/cpu.cfs_period_us", "100000\n");
  EXPECT_DOUBLE_EQ(quota(), 3);
  file("cpuacct,cpu/docker/4f/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(quota(), kNoLimit);
}

TEST_F(CpuQuota, SeesTheLimitOfAContainerThatShowsItsGroupAsTheMount) {
  groups("2:cpu:/docker/4f\n");
  file("cpu/cpu.cfs_quota_us", "100000\n");
  file("cpu/cpu.cfs_period_us", "50000\n");
  EXPECT_DOUBLE_EQ(quota(), 2);
}

TEST_F(CpuQuota, ReadsBothVersionsAtOnce) {
  groups("1:cpu:/a\n0::/b\n");
  file("cpu/a/cpu.cfs_quota_us", "400000\n");
  file("cpu/a/cpu.cfs_period_us", "100000\n");
  file("unified/b/cpu.max", "250000 100000\n");
  EXPECT_DOUBLE_EQ(quota(), 2.5);
}

TEST_F(CpuQuota, DoesNotTakeCpusetForCpu) {
  groups("1:cpuset:/a\n");
  file("cpuset/a/cpu.cfs_quota_us", "100000\n");
  file("cpuset/a/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(quota(), kNoLimit);
}

TEST_F(CpuQuota, IgnoresWhatItCannotRead) {
  groups("nonsense\n0::/../..\n:\n");
  file("cpu.max", "much 0\n");
  EXPECT_EQ(quota(), kNoLimit);
  file("cpu.max", "100000 0\n");
  EXPECT_EQ(quota(), kNoLimit);
}

}  // namespace
}  // namespace lockstep
