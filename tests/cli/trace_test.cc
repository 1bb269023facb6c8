// Time lines of processes, written to files from the command line.
// Tier: nightly, by case. Each case starts the program.
#include <cstdlib>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/base/expect_problem.h"
#include "tests/cli/program.h"
#include "tests/cli/read_trace.h"

namespace lockstep::trace_test {
namespace {

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
  const std::string found = read_trace(path);
  for (const char* rank : {"0", "1"}) {
    EXPECT_PRED2(contains, found,
                 std::string("rank ") + rank + ": steps 3-4; lanes main, cpu:" +
                     rank + ", all-reduce; spans all-reduce x2, backward x2");
  }
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
  EXPECT_PRED2(contains, read_trace(path), "rank 1: steps 1-4");
}

TEST(Trace, StepsNeedATrace) {
  const Ended ended = run_lockstep(train({"--trace-steps", "3"}));
  EXPECT_EQ(ended.code, 2);
  EXPECT_PRED2(contains, ended.err, "--trace");
}

}  // namespace
}  // namespace lockstep::trace_test
