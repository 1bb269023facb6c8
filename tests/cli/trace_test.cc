// Time lines of processes, written to files from the command line.
// Tier: nightly, by case. Each case starts the program.
#include <cstdlib>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/base/expect_problem.h"
#include "tests/checkpoint/python.h"
#include "tests/cli/program.h"

namespace lockstep::trace_test {
namespace {

std::string read_strictly(const std::string& path) {
  return run_python(
      content_of(LOCKSTEP_SOURCE_DIR "/tests/train/check_trace.py"), path);
}

bool has_python() { return !std::string(LOCKSTEP_TEST_PYTHON).empty(); }

std::vector<std::string> train(const std::vector<std::string>& more) {
  std::vector<std::string> all{"train",       "--model", "mlp",
                               "--max-steps", "5",       "--batch-size",
                               "16",          "--quiet", "--no-eval"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

TEST(Trace, OfTwoProcessesIsOneFile) {
  if (!has_python()) GTEST_SKIP() << "the build knows no Python";
  const TemporaryFolder folder;
  const std::string path = folder.path("ddp.json");
  const Ended ended =
      run_lockstep(train({"--strategy", "ddp", "--devices", "2xcpu", "--trace",
                          path, "--trace-steps", "2"}));
  ASSERT_EQ(ended.code, 0) << ended.err;
  const std::string found = read_strictly(path);
  for (const char* rank : {"0", "1"}) {
    EXPECT_PRED2(contains, found,
                 std::string("rank ") + rank + ": steps 3-4; lanes main, cpu:" +
                     rank + ", all-reduce; spans all-reduce x2, backward x2");
  }
}

TEST(Trace, OfAComparisonIsAFileForEachStrategy) {
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
  EXPECT_PRED2(contains, read_strictly(traces + "/dp.json"),
               "rank 0: steps 1-3; lanes main, cpu:");
  EXPECT_PRED2(contains, read_strictly(traces + "/ddp.json"),
               "rank 1: steps 1-3; lanes main, cpu:1, all-reduce");
  EXPECT_PRED2(contains, ended.out, "A typical step of ddp, ");
  EXPECT_PRED2(contains, ended.out, "\nrank 1  all-reduce |");
  EXPECT_PRED2(contains, ended.out, "B backward");
}

TEST(Trace, IsRefusedBeforeTheTrainingWhereItCantBeWritten) {
  for (const char* strategy : {"single", "ddp"}) {
    const Ended ended =
        run_lockstep(train({"--strategy", strategy, "--devices", "cpu",
                            "--trace", "/no/such/folder/trace.json"}));
    EXPECT_EQ(ended.code, 1);
    expect_problem(ended.err, ErrorCode::kFileAccess, {"/no/such/folder"});
    EXPECT_FALSE(contains(ended.err, "root cause")) << ended.err;
  }
  const Ended ended = run_lockstep(
      {"compare", "--strategies", "ddp", "--trace", "/proc/no/traces"});
  EXPECT_EQ(ended.code, 1);
  expect_problem(ended.err, ErrorCode::kFileAccess, {"/proc/no"});
  EXPECT_FALSE(contains(ended.err, "round 1")) << ended.err;
}

// Rank 1 is in a time namespace where the monotonic clock is 5000 s ahead, as
// on another host.
TEST(Trace, AlignsRanksWhoseClocksDiffer) {
  if (!has_python()) GTEST_SKIP() << "the build knows no Python";
  const std::string elsewhere = "unshare -T --monotonic 5000 --fork ";
  if (std::system((elsewhere + "true 2>/dev/null").c_str()) != 0) {
    GTEST_SKIP() << "can't make time namespaces";
  }
  const TemporaryFolder folder;
  const std::string path = folder.path("ddp.json");
  std::string command = LOCKSTEP_BINARY_DIR "/bin/lockstep";
  for (const auto& word : train({"--strategy", "ddp", "--devices", "2xcpu",
                                 "--backend", "tcp", "--trace", path})) {
    command += " " + word;
  }
  const Ended ended = run_lockstep(
      {"run", "--nproc-per-node", "2", "--", "sh", "-c",
       "[ $RANK = 0 ] && exec " + command + "; exec " + elsewhere + command});
  ASSERT_EQ(ended.code, 0) << ended.err;
  EXPECT_PRED2(contains, read_strictly(path), "rank 1: steps 1-4");
}

TEST(Trace, StepsNeedATrace) {
  const Ended ended = run_lockstep(train({"--trace-steps", "3"}));
  EXPECT_EQ(ended.code, 2);
  EXPECT_PRED2(contains, ended.err, "--trace");
}

}  // namespace
}  // namespace lockstep::trace_test
