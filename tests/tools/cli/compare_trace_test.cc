// Time lines of `compare`, written to files.
// Tier: nightly, by case. Each case starts the program.
#include <string>

#include <gtest/gtest.h>

#include "tests/base/expect_problem.h"
#include "tests/cli/program.h"
#include "tests/cli/read_trace.h"

namespace lockstep::compare_trace_test {
namespace {

TEST(CompareTrace, IsAFileForEachStrategy) {
  if (!has_python()) GTEST_SKIP() << "the build knows no Python";
  const TemporaryFolder folder;
  const std::string traces = folder.path("traces/of/mlp");
  const Ended ended =
      run_lockstep({"compare", "--model", "mlp", "--batch-size", "8", "--steps",
                    "3", "--warmup", "1", "--rounds", "1", "--devices", "2xcpu",
                    "--strategies", "dp,ddp", "--details", "--trace", traces},
                   {{"LC_ALL", "C"}});
  ASSERT_EQ(ended.code, 0) << ended.err;
  // Only timed steps are in the trace.
  EXPECT_PRED2(contains, read_trace(traces + "/dp.json"),
               "rank 0: steps 1-3; lanes main, cpu:");
  EXPECT_PRED2(contains, read_trace(traces + "/ddp.json"),
               "rank 1: steps 1-3; lanes main, cpu:1, all-reduce");
  EXPECT_PRED2(contains, ended.out, "A typical step of ddp, ");
  EXPECT_PRED2(contains, ended.out, "\nrank 1  all-reduce |");
  EXPECT_PRED2(contains, ended.out, "B backward");
}

TEST(CompareTrace, IsRefusedBeforeTheFirstRoundWhereItCantBeWritten) {
  const Ended ended = run_lockstep(
      {"compare", "--strategies", "ddp", "--trace", "/proc/no/traces"});
  EXPECT_EQ(ended.code, 1);
  expect_problem(ended.err, ErrorCode::kFileAccess, {"/proc/no"});
  EXPECT_FALSE(contains(ended.err, "round 1")) << ended.err;
}

}  // namespace
}  // namespace lockstep::compare_trace_test
