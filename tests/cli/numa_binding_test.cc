#include "lockstep/cli/start/numa_binding.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "tests/base/is_error.h"
#include "tests/cli/numa_host.h"

namespace lockstep::cli {
namespace {

using Cores = std::vector<int>;
using AllCores = std::vector<Cores>;

AllCores bound(const std::string& mode, int workers,
               const std::vector<std::string>& gpus = {},
               const Cores& allowed = NumaHost::all_cores()) {
  return bind_to_numa(mode, workers, gpus, allowed);
}

TEST(NumaBinding, BindsToTheNodeOrTheSocketOfTheGpu) {
  NumaHost host;
  const std::vector<std::string> gpus{host.add_gpu(3), host.add_gpu(1)};
  EXPECT_EQ(bound("node", 2, gpus), (AllCores{{12, 13, 14, 15, 28, 29, 30, 31},
                                              {4, 5, 6, 7, 20, 21, 22, 23}}));
  EXPECT_EQ(bound("socket", 1, gpus, {0, 8, 9, 15, 24}),
            (AllCores{{8, 9, 15, 24}}));
}

TEST(NumaBinding, DividesTheCoresOfANodeAmongItsGpus) {
  NumaHost host;
  const std::vector<std::string> gpus{host.add_gpu(1), host.add_gpu(2),
                                      host.add_gpu(1), host.add_gpu(1)};
  EXPECT_EQ(
      bound("exclusive", 4, gpus),
      (AllCores{
          {4, 5, 20, 21}, {8, 9, 10, 11, 24, 25, 26, 27}, {6, 22}, {7, 23}}));
  EXPECT_EQ(
      bound("core-complex", 4, gpus),
      (AllCores{
          {4, 5, 20, 21}, {8, 9, 24, 25}, {6, 7, 22, 23}, {4, 5, 20, 21}}));
  // The cache with the most cores that may be used comes first.
  EXPECT_EQ(bound("core-complex", 1, gpus, {4, 6, 7}), (AllCores{{6, 7}}));
}

TEST(NumaBinding, TakesAnUnknownNodeForTheFirst) {
  NumaHost host;
  EXPECT_EQ(bound("node", 1, {host.add_gpu(-1)}).at(0).front(), 0);
}

TEST(NumaBinding, DistributesWorkersWithoutGpusOverTheNodes) {
  const NumaHost host;
  const auto four = bound("node", 4);
  EXPECT_EQ(four, bound("exclusive", 4));
  EXPECT_EQ(four.at(2), (Cores{8, 9, 10, 11, 24, 25, 26, 27}));
  const auto eight = bound("exclusive", 8);
  EXPECT_EQ(eight.at(0), (Cores{0, 1, 16, 17}));
  EXPECT_EQ(eight.at(1), (Cores{2, 3, 18, 19}));
  EXPECT_EQ(eight.at(2), (Cores{4, 5, 20, 21}));
  // Nodes without an allowed core don't count.
  EXPECT_EQ(bound("node", 2, {}, {4, 5, 12}), (AllCores{{4, 5}, {12}}));
}

// Memory that all cores share, such as CXL memory, is a node of its own.
TEST(NumaBinding, IgnoresNodesOfMemoryOnly) {
  const NumaHost host("[numa] package:2 [numa(memory=1GB)] core:2 pu:1");
  EXPECT_EQ(bound("node", 2, {}, {0, 1, 2, 3}), (AllCores{{0, 1}, {2, 3}}));
}

TEST(NumaBinding, SaysWhyItCanNotBind) {
  NumaHost host;
  const auto error = [&](const std::string& mode, int workers,
                         const std::vector<std::string>& gpus,
                         const Cores& allowed = NumaHost::all_cores()) {
    return error_of<LaunchError>([&] { bound(mode, workers, gpus, allowed); });
  };
  const auto code = ErrorCode::kNoSuchDevice;
  const auto gpu = host.add_gpu(1);
  EXPECT_TRUE(is_error(error("node", 3, {gpu}), code, {"3 workers"}));
  EXPECT_TRUE(is_error(error("node", 1, {gpu}, {0, 1}), code, {"node 1"}));
  EXPECT_TRUE(is_error(error("exclusive", 17, {}), code,
                       {"5 physical cores", "got 4"}));
  EXPECT_TRUE(
      is_error(error("node", 1, {"0000:99:00.0"}), code, {"0000:99:00.0"}));
}

}  // namespace
}  // namespace lockstep::cli
