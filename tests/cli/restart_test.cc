// `lockstep run --max-restarts`, for real.
#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/stopwatch.h"
#include "lockstep/launch/endpoint.h"
#include "tests/base/temporary_folder.h"
#include "tests/cli/processes.h"
#include "tests/cli/program.h"

namespace lockstep {
namespace {

using Words = std::vector<std::string>;

const std::string kProgram = LOCKSTEP_BINARY_DIR "/bin/lockstep";

// `lockstep run --nproc-per-node 2 options -- sh -c script`.
Words sh(const Words& options, const std::string& script) {
  Words words{"run", "--nproc-per-node", "2"};
  words.insert(words.end(), options.begin(), options.end());
  words.insert(words.end(), {"--", "sh", "-c", script});
  return words;
}

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) {
    ++count;
  }
  return count;
}

// Rank 1 fails until the attempt with that number; "done N" otherwise.
std::string fails_until(int attempt) {
  return "if [ $RANK = 1 ] && [ $TORCHELASTIC_RESTART_COUNT -lt " +
         std::to_string(attempt) +
         " ]; then echo boom >&2; exit 3; fi; "
         "echo done $TORCHELASTIC_RESTART_COUNT";
}

TEST(SlowRestart, StartsAllAgainUntilTheyEndWell) {
  const TemporaryFolder folder;
  const Ended ended =
      run_lockstep(sh({"--max-restarts", "3", "--log-dir", folder.path("logs")},
                      fails_until(2)));
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_PRED2(contains, ended.out, "[rank 0] done 2\n");
  EXPECT_PRED2(contains, ended.out, "[rank 1] done 2\n");
  EXPECT_PRED2(contains, ended.err, "exit code 3; all start again (restart 1");
  EXPECT_PRED2(contains, ended.err, "[launch] 2 failures survived\n");
  EXPECT_EQ(count_of(ended.err, "all ran again"), 2u) << ended.err;
  const auto run = *std::filesystem::directory_iterator(folder.path("logs"));
  EXPECT_EQ(content_of(run.path() / "attempt_1/1/stderr.log"), "boom\n");
  EXPECT_EQ(content_of(run.path() / "attempt_2/1/stderr.log"), "");
}

TEST(SlowRestart, EndsWithTheReportWhenThereAreNoneLeft) {
  const Ended ended = run_lockstep(sh({"--max-restarts", "1"}, fails_until(9)));
  EXPECT_EQ(ended.code, 1);
  EXPECT_PRED2(contains, ended.err, "[launch] 1 failure survived\n");
  const auto report = ended.err.find("[launch] the job failed\n");
  ASSERT_NE(report, std::string::npos) << ended.err;
  EXPECT_PRED2(contains, ended.err.substr(report), "root cause: rank 1");
}

TEST(SlowRestart, ASignalEndsTheWaitBeforeIt) {
  Program program(sh({"--max-restarts", "99"},
                     "echo attempt $TORCHELASTIC_RESTART_COUNT ready; exit 3"));
  // By then it waits for 4 s and more before each.
  ASSERT_TRUE(program.wait_for_output("attempt 3"));
  const Stopwatch watch;
  program.send(SIGTERM);
  EXPECT_EQ(program.wait(), 128 + SIGTERM);
  EXPECT_LT(watch.seconds(), 30);
  EXPECT_PRED2(contains, program.err(), "the job was ended: the agent on ");
}

TEST(SlowRestart, AllNodesStartAgain) {
  launch::Endpoint endpoint{"127.0.0.1", 0};
  launch::listen_at(endpoint).close();
  const auto node = [&](int rank) {
    return sh({"--max-restarts", "2", "--nnodes", "2", "--node-rank",
               std::to_string(rank), "--master-addr", "127.0.0.1",
               "--master-port", std::to_string(endpoint.port)},
              "if [ $RANK = 3 ] && [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then "
              "exit 3; fi; echo done $TORCHELASTIC_RESTART_COUNT $RANK; "
              "[ $RANK = 0 ] || sleep 1");
  };
  Program first(node(0));
  Program second(node(1));
  EXPECT_EQ(first.wait(), 0) << first.err();
  EXPECT_EQ(second.wait(), 0) << second.err();
  for (const char* rank : {"0", "1"}) {
    EXPECT_PRED2(contains, first.out(), std::string("done 1 ") + rank);
  }
  EXPECT_PRED2(contains, second.out(), "done 1 3");
  for (const Program* program : {&first, &second}) {
    EXPECT_PRED2(contains, program->err(), "rank 3 on ");
    EXPECT_PRED2(contains, program->err(), "1 failure survived");
  }
}

std::string digest_in(const std::string& out) {
  const std::string key = "parameter_sha256 ";
  const auto at = out.find(key);
  return at == std::string::npos ? "none in: " + out
                                 : out.substr(at + key.size(), 64);
}

TEST(SlowRestart, AKilledRankLeavesNoTraceInTheBits) {
  const TemporaryFolder folder;
  const auto train = [&](const std::string& dir) {
    return Words{"run",
                 "--nproc-per-node",
                 "2",
                 "--max-restarts",
                 "5",
                 "--",
                 kProgram,
                 "train",
                 "--strategy",
                 "ddp",
                 "--model",
                 "mlp",
                 "--data",
                 "synthetic",
                 "--shards",
                 "2",
                 "--batch-size",
                 "32",
                 "--max-steps",
                 "40",
                 "--no-eval",
                 "--log-every",
                 "1",
                 "--checkpoint-every",
                 "4",
                 "--resume",
                 "auto",
                 "--verbose-ranks",
                 "--out-dir",
                 folder.path(dir)};
  };
  const Ended quiet = run_lockstep(train("quiet"));
  ASSERT_EQ(quiet.code, 0) << quiet.err;

  Program program(train("killed"));
  for (const char* moment : {"step 6/40", "step 21/40"}) {
    ASSERT_TRUE(program.wait_for_output(moment)) << program.err();
    const auto workers = children_of(program.pid(), "lockstep");
    ASSERT_FALSE(workers.empty());
    ::kill(workers.back(), SIGKILL);
  }
  EXPECT_EQ(program.wait(), 0) << program.err();
  EXPECT_PRED2(contains, program.err(), "2 failures survived");
  EXPECT_PRED2(contains, program.out(), "resumed from ");
  EXPECT_EQ(digest_in(program.out()), digest_in(quiet.out));
}

}  // namespace
}  // namespace lockstep
