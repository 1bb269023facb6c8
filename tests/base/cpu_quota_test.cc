#include "lockstep/base/cpu_quota.h"

#include <limits>

#include <gtest/gtest.h>

#include "tests/base/temporary_folder.h"

namespace lockstep {
namespace {

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
