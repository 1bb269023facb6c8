#include "lockstep/tools/collectives/collective_case.h"

#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/table.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/tools/collectives/collective_bench.h"

namespace lockstep::tools {
namespace {

constexpr int64_t kCount = 12;

CollectiveCase case_of(const std::string& name, int rank, int ranks) {
  return {parse_collective(name), kCount, torch::kFloat32, rank, ranks};
}

TEST(CollectiveCase, IsRightOverAWorldAndWrongWithoutOne) {
  spawn(3, [](const ProcessGroup& world) {
    for (const auto& name : collective_names()) {
      const auto its = case_of(name, world.rank(), world.size());
      CollectiveBuffers buffers = its.make_buffers();
      its.fill(buffers);
      // Rank 0 has the right data from the start if it broadcasts.
      if (name != "broadcast" || world.rank() != 0) {
        EXPECT_GT(its.count_wrong(buffers), 0) << name;
      }
      its.run(world, buffers);
      EXPECT_EQ(its.count_wrong(buffers), 0) << name;
      buffers.output[1].add_(1);
      EXPECT_EQ(its.count_wrong(buffers), 1) << name;
    }
  });
}

TEST(CollectiveCase, CountsSizesAsNcclTestsDo) {
  const auto elements = [](const std::string& name) {
    const auto buffers = case_of(name, 0, 3).make_buffers();
    return std::pair(buffers.input.numel(), buffers.output.numel());
  };
  EXPECT_EQ(elements("allreduce"), std::pair(kCount, kCount));
  EXPECT_EQ(elements("allgather"), std::pair(kCount / 3, kCount));
  EXPECT_EQ(elements("reduce-scatter"), std::pair(kCount, kCount / 3));
  EXPECT_EQ(elements("alltoall"), std::pair(kCount, kCount));
}

// The table in nccl-tests' doc/PERFORMANCE.md.
TEST(BusFactor, IsThatOfNcclTests) {
  EXPECT_DOUBLE_EQ(bus_factor(Collective::kAllReduce, 4), 1.5);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::kAllGather, 4), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::kReduceScatter, 4), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::kAllToAll, 4), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::kBroadcast, 4), 1);
}

TEST(CollectiveNames, AreReadBack) {
  for (const auto& name : collective_names()) {
    EXPECT_EQ(name_of(parse_collective(name)), name);
  }
  EXPECT_THROW(parse_collective("all"), InvalidArgument);
}

TEST(CollectiveReport, GivesTheResidentSumItsShareOfTheCeiling) {
  CollectiveSize size{.bytes = 100, .count = 25};
  size.copy_s = 3;
  size.update_s = 2;
  CollectiveReport report;
  EXPECT_FALSE(share_of_ceiling(report, size));
  size.figures.push_back({.way = "shm resident", .time_s = 4});
  EXPECT_DOUBLE_EQ(*share_of_ceiling(report, size), 0.5);
  report.collective = Collective::kBroadcast;
  EXPECT_FALSE(share_of_ceiling(report, size));
}

TEST(CollectiveText, FitsTerminalsOfAnyWidth) {
  CollectiveSize size{.bytes = 268435456, .count = 67108864};
  size.copy_s = 0.0123;
  size.update_s = 0.0234;
  for (const char* way : {"shm resident", "shm", "tcp", "PyTorch"}) {
    size.figures.push_back({.way = way,
                            .time_s = 0.123456,
                            .algorithm_gb_s = 12.34,
                            .bus_gb_s = 12.34,
                            .speedup = 1.5});
  }
  const CollectiveReport report{
      .type = "bfloat16", .ranks = 2, .sizes = {size}};
  for (const int width : {40, 60, 78, 79, 80, 120}) {
    const std::string text =
        header_text(report.collective, report.ranks, width) +
        to_text(report, size, width) + summary_text(report, width);
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      EXPECT_LE(display_width(line), static_cast<size_t>(width)) << line;
    }
    for (const char* part : {"shm resident", "123456.0", "12.34", "1.50"}) {
      EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
    }
  }
}

}  // namespace
}  // namespace lockstep::tools
