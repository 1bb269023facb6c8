// Tier: nightly, by case. A tool.
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/cli/start/checks.h"
#include "tests/base/expect_problem.h"
#include "tests/base/temporary_folder.h"
#include "tests/cli/program.h"
#include "tests/cli/shells.h"

namespace lockstep {
namespace {

using nlohmann::json;
using Arguments = std::vector<std::string>;
using Sizes = std::vector<int64_t>;

Ended bench(const Arguments& more) {
  Arguments all{"bench"};
  all.insert(all.end(), more.begin(), more.end());
  return run_lockstep(all);
}

/// Returns the JSON of a short run with 2 ranks.
json figures_of(const std::string& collective, const std::string& type) {
  const TemporaryFolder folder;
  const std::string path = folder.path("bench.json");
  const Ended ended =
      bench({collective, "--sizes", "4K:64K", "--nproc", "2", "--iters", "3",
             "--warmup", "1", "--dtype", type, "--json", path});
  EXPECT_EQ(ended.code, 0) << ended.err;
  for (const char* part : {"algbw", "busbw", "65536", "Wrong elements: 0\n"}) {
    EXPECT_PRED2(contains, ended.out, part);
  }
  std::ifstream file(path);
  return json::parse(file);
}

TEST(Sizes, GoFromTheFirstToTheLastByTheFactor) {
  EXPECT_EQ(cli::parse_sizes("4K:64K", 4), (Sizes{4096, 16384, 65536}));
  EXPECT_EQ(cli::parse_sizes("1M:3M", 2), (Sizes{1 << 20, 2 << 20}));
  EXPECT_EQ(cli::parse_sizes("100", 4), Sizes{100});
  EXPECT_EQ(cli::parse_sizes("16G", 4), Sizes{int64_t{16} << 30});
}

TEST(Sizes, ThatCantBeAreRefused) {
  for (const char* text : {"", ":", "4K:", ":4K", "0", "-4", "4X", "4K:1K",
                           "17G", "99999999999999999999", "4K:8K:2", "4 K"}) {
    EXPECT_THROW(cli::parse_sizes(text, 4), cli::BadUsage) << text;
  }
}

TEST(Bench, TimesAndChecksEachCollective) {
  for (const std::string collective :
       {"allreduce", "allgather", "reduce-scatter", "broadcast", "alltoall"}) {
    const json report = figures_of(collective, "float32");
    EXPECT_EQ(report["collective"], collective);
    EXPECT_EQ(report["ranks"], 2);
    ASSERT_EQ(report["sizes"].size(), 3u) << collective;
    const json& last = report["sizes"][2];
    EXPECT_EQ(last["bytes"], 65536);
    EXPECT_EQ(last["count"], 16384);
    EXPECT_GT(last["ceiling_gb_s"].get<double>(), 0);
    const bool has_resident = collective == "allreduce";
    ASSERT_EQ(last["backends"].size(), has_resident ? 3u : 2u);
    EXPECT_EQ(last["resident_share_of_ceiling"].is_number(), has_resident);
    for (const auto& figure : last["backends"]) {
      EXPECT_EQ(figure["wrong"], 0);
      const double time_us = figure["time_us"].get<double>();
      ASSERT_GT(time_us, 0);
      EXPECT_NEAR(figure["algbw_gb_s"].get<double>(), 65536 / time_us / 1e3,
                  1e-6);
      EXPECT_TRUE(figure["speedup_over_pytorch"].is_null());
    }
    // nccl-tests' factors for two ranks.
    const double factor =
        collective == "allreduce" || collective == "broadcast" ? 1 : 0.5;
    EXPECT_NEAR(last["backends"][0]["busbw_gb_s"].get<double>(),
                last["backends"][0]["algbw_gb_s"].get<double>() * factor, 1e-9);
  }
}

TEST(Bench, ChecksOtherTypes) {
  for (const std::string type : {"bfloat16", "float64", "int64", "uint8"}) {
    EXPECT_EQ(figures_of("allreduce", type)["type"], type);
  }
}

TEST(Bench, TimesOnlyWhatIsAskedFor) {
  const Ended ended =
      bench({"allreduce", "--sizes", "1K", "--iters", "2", "--backend", "shm",
             "--resident", "off", "--check", "off"});
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_PRED2(contains, ended.out, "\nshm ");
  EXPECT_PRED2(contains, ended.out, "The data was not checked.");
  EXPECT_FALSE(contains(ended.out, "shm resident")) << ended.out;
  EXPECT_FALSE(contains(ended.out, "\ntcp")) << ended.out;
}

TEST(Bench, TimesPyTorchBesideItself) {
  const TemporaryFolder folder;
  const std::string path = folder.path("bench.json");
  for (const std::string collective :
       {"allreduce", "allgather", "reduce-scatter", "broadcast", "alltoall"}) {
    const Ended ended = bench({collective, "--sizes", "64K", "--iters", "2",
                               "--pytorch", "--json", path});
    ASSERT_EQ(ended.code, 0) << ended.err;
    EXPECT_PRED2(contains, ended.out, "\nPyTorch ");
    std::ifstream file(path);
    const json figures = json::parse(file)["sizes"][0]["backends"];
    EXPECT_TRUE(figures.back()["wrong"].is_null());
    for (const auto& figure : figures) {
      EXPECT_GT(figure["speedup_over_pytorch"].get<double>(), 0);
    }
  }
}

TEST(Bench, ExplainsBadUsage) {
  for (const Arguments& arguments :
       {Arguments{"allreduce", "--sizes", "4K:1K"},
        Arguments{"allreduce", "--sizes", "x"}, Arguments{"allreduc"},
        Arguments{"allreduce", "--nproc", "1"},
        Arguments{"allreduce", "--backend", "nccl"}, Arguments{}}) {
    const Ended ended = bench(arguments);
    EXPECT_EQ(ended.code, 2) << ended.out;
    EXPECT_PRED2(contains, ended.err, "[usage]");
  }
  EXPECT_PRED2(contains, bench({"allreduce", "--sizes", "4K:1K"}).err,
               "--sizes");
}

TEST(Bench, FindsOutFirstThatItCantWrite) {
  const Ended ended = bench({"allreduce", "--json", "/no/such/folder/x.json"});
  EXPECT_EQ(ended.code, 1);
  expect_problem(ended.err, ErrorCode::kFileAccess, {"/no/such/folder"});
  EXPECT_EQ(ended.out, "");
}

TEST(BashCompletion, OffersTheCollectives) {
  using Words = std::vector<std::string>;
  EXPECT_EQ(bash_offers("lockstep bench allr"), Words{"allreduce"});
  EXPECT_EQ(bash_offers("lockstep bench allreduce --backend t"), Words{"tcp"});
}

}  // namespace
}  // namespace lockstep
