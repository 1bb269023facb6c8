#include "lockstep/launch/options/numa_binding.h"

#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/cores.h"
#include "lockstep/base/error.h"
#include "tests/base/is_error.h"
#include "tests/launch/options/fake_host.h"

namespace lockstep::launch {
namespace {

using Cores = std::vector<int>;
using AllCores = std::vector<Cores>;

AllCores cores_on(const FakeHost& host, NumaBinding binding, int workers,
                  const std::vector<std::string>& gpus = {},
                  const Cores& allowed = FakeHost::all_cores()) {
  return bind_to_numa(binding, workers, gpus, allowed, host.root()).per_worker;
}

TEST(NumaBinding, BindsToTheNodeOrTheSocketOfTheGpu) {
  FakeHost host;
  const std::vector<std::string> gpus{host.add_gpu(3), host.add_gpu(1)};
  EXPECT_EQ(cores_on(host, NumaBinding::kNode, 2, gpus),
            (AllCores{{12, 13, 14, 15, 28, 29, 30, 31},
                      {4, 5, 6, 7, 20, 21, 22, 23}}));
  EXPECT_EQ(cores_on(host, NumaBinding::kSocket, 1, gpus, {0, 8, 9, 15, 24}),
            (AllCores{{8, 9, 15, 24}}));
}

TEST(NumaBinding, DividesTheCoresOfANodeAmongItsGpus) {
  FakeHost host;
  const std::vector<std::string> gpus{host.add_gpu(1), host.add_gpu(2),
                                      host.add_gpu(1), host.add_gpu(1)};
  EXPECT_EQ(
      cores_on(host, NumaBinding::kExclusive, 4, gpus),
      (AllCores{
          {4, 5, 20, 21}, {8, 9, 10, 11, 24, 25, 26, 27}, {6, 22}, {7, 23}}));
  EXPECT_EQ(
      cores_on(host, NumaBinding::kCoreComplex, 4, gpus),
      (AllCores{
          {4, 5, 20, 21}, {8, 9, 24, 25}, {6, 7, 22, 23}, {4, 5, 20, 21}}));
}

TEST(NumaBinding, TakesAnUnknownNodeForTheFirst) {
  FakeHost host;
  EXPECT_EQ(
      cores_on(host, NumaBinding::kNode, 1, {host.add_gpu(-1)}).at(0).front(),
      0);
}

TEST(NumaBinding, DistributesWorkersWithoutGpusOverTheNodes) {
  const FakeHost host;
  const auto four = cores_on(host, NumaBinding::kNode, 4);
  EXPECT_EQ(four, cores_on(host, NumaBinding::kExclusive, 4));
  EXPECT_EQ(four.at(2), (Cores{8, 9, 10, 11, 24, 25, 26, 27}));
  const auto eight = cores_on(host, NumaBinding::kExclusive, 8);
  EXPECT_EQ(eight.at(0), (Cores{0, 1, 16, 17}));
  EXPECT_EQ(eight.at(1), (Cores{2, 3, 18, 19}));
  EXPECT_EQ(eight.at(2), (Cores{4, 5, 20, 21}));
  // Nodes without an allowed core don't count.
  EXPECT_EQ(cores_on(host, NumaBinding::kNode, 2, {}, {4, 5, 12}),
            (AllCores{{4, 5}, {12}}));
}

TEST(NumaBinding, WorksWithAKernelWithoutNuma) {
  const TemporaryFolder empty;
  EXPECT_EQ(
      bind_to_numa(NumaBinding::kNode, 2, {}, {1, 3}, empty.path()).per_worker,
      (AllCores{{1, 3}, {1, 3}}));
}

TEST(NumaBinding, SaysWhyItCanNotBind) {
  FakeHost host;
  const auto error = [&](NumaBinding binding, int workers,
                         const std::vector<std::string>& gpus,
                         const Cores& allowed = FakeHost::all_cores()) {
    return error_of<LaunchError>(
        [&] { cores_on(host, binding, workers, gpus, allowed); });
  };
  const auto code = ErrorCode::kNoSuchDevice;
  const auto gpu = host.add_gpu(1);
  EXPECT_TRUE(
      is_error(error(NumaBinding::kNode, 3, {gpu}), code, {"3 workers"}));
  EXPECT_TRUE(
      is_error(error(NumaBinding::kNode, 1, {gpu}, {0, 1}), code, {"node 1"}));
  EXPECT_TRUE(is_error(error(NumaBinding::kExclusive, 17, {}), code,
                       {"node 0", "5 physical cores", "got 4"}));
  EXPECT_TRUE(is_error(error(NumaBinding::kNode, 1, {"0000:99:00.0"}), code,
                       {"0000:99:00.0"}));
  std::filesystem::remove_all(host.root() + "/sys/devices/system/cpu");
  for (const auto binding : {NumaBinding::kSocket, NumaBinding::kExclusive,
                             NumaBinding::kCoreComplex}) {
    EXPECT_TRUE(is_error(error(binding, 1, {}), code, {"cpu0"}));
  }
}

TEST(NumaBinding, RefusesDamagedFiles) {
  for (const char* bad : {"x", "3-1", "-1", "0-99999999", "0,,1", "1-"}) {
    FakeHost host;
    host.write("node/node0/cpulist", bad);
    EXPECT_TRUE(is_error(
        error_of<LaunchError>([&] { cores_on(host, NumaBinding::kNode, 1); }),
        ErrorCode::kNoSuchDevice, {"node0/cpulist", bad}))
        << bad;
  }
  FakeHost host;
  host.write("cpu/cpu0/topology/physical_package_id", "first");
  EXPECT_TRUE(is_error(
      error_of<LaunchError>([&] { cores_on(host, NumaBinding::kSocket, 1); }),
      ErrorCode::kNoSuchDevice, {"physical_package_id", "'first'"}));
}

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
