// `lockstep run --spare-worker`: workers are forked from a process that has
// loaded the libraries.
// Tier: nightly, by case. Each case restarts workers.
#include "lockstep/control/spare.h"

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/base/temporary_folder.h"
#include "tests/cli/processes.h"
#include "tests/cli/program.h"

namespace lockstep::spare_test {
namespace {

using Words = std::vector<std::string>;

const std::string kFaultyProgram = LOCKSTEP_BINARY_DIR "/bin/faulty_lockstep";
const std::string kPrintEnvironment =
    LOCKSTEP_BINARY_DIR "/bin/print_environment";

Words job(const Words& options, const Words& command) {
  Words words{"run", "--nproc-per-node", "2", "--max-restarts", "9"};
  words.insert(words.end(), options.begin(), options.end());
  words.push_back("--");
  words.insert(words.end(), command.begin(), command.end());
  return words;
}

// Nothing is written to a disk.
Words training(const Words& options, const std::string& program) {
  return job(options,
             {program, "train", "--strategy", "ddp", "--model", "mlp", "--data",
              "synthetic", "--shards", "2", "--batch-size", "32", "--max-steps",
              "60", "--no-eval", "--log-every", "1"});
}

std::string quiet_digest() {
  static const std::string digest =
      digest_in(run_lockstep(training({}, kProgram)).out);
  return digest;
}

std::string target_of(pid_t pid, const std::string& link) {
  std::error_code gone;
  return std::filesystem::read_symlink(
      "/proc/" + std::to_string(pid) + "/" + link, gone);
}

bool was_forked(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/environ");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  return contains(text, control::kSpareVariable);
}

bool is_spare(pid_t pid) {
  return target_of(pid, "fd/0").starts_with("socket:") && was_forked(pid);
}

// Returns the children of the agent that are spare workers, or those that were
// forked from one.
Words::size_type count_forked(const Program& program) {
  Words::size_type count = 0;
  for (const char* name : {"lockstep", "faulty_lockstep"}) {
    for (const pid_t pid : children_of(program.pid(), name)) {
      if (state_of(pid) != 'Z' && was_forked(pid) && !is_spare(pid)) ++count;
    }
  }
  return count;
}

pid_t spare_of(const Program& program) {
  for (const char* name : {"lockstep", "faulty_lockstep"}) {
    for (const pid_t pid : children_of(program.pid(), name)) {
      if (state_of(pid) != 'Z' && is_spare(pid)) return pid;
    }
  }
  return -1;
}

TEST(Spare, ForksTheRankThatReplacesAKilledOne) {
  for (const char* rank : {"0", "1"}) {
    const TemporaryFolder folder;
    Program program(
        training({"--spare-worker"}, kFaultyProgram),
        {{"LOCKSTEP_FAULT", std::string("kill@backward:step=6:rank=") + rank},
         {"LOCKSTEP_FAULT_FOLDER", folder.path()}});
    ASSERT_TRUE(program.wait_for_output("resumed from memory"))
        << program.err();
    const pid_t spare = spare_of(program);
    EXPECT_GT(spare, 0);
    EXPECT_EQ(count_forked(program), 2U);
    EXPECT_EQ(program.wait(), 0) << program.err();
    EXPECT_EQ(digest_in(program.out()), quiet_digest());
    EXPECT_PRED2(contains, program.err(),
                 "1 starts again, 1 waits for it (restart 1 of 9)");
    EXPECT_PRED2(contains, program.err(), "[launch] 1 failure survived\n");
    EXPECT_EQ(count_of(program.err(), "spare"), 0) << program.err();
    EXPECT_TRUE(is_gone(spare));
  }
}

TEST(Spare, ThatIsKilledIsReplaced) {
  Program program(training({"--spare-worker"}, kProgram));
  ASSERT_TRUE(program.wait_for_output("step 8/60")) << program.err();
  const pid_t first = spare_of(program);
  ASSERT_GT(first, 0);
  ::kill(first, SIGKILL);
  EXPECT_TRUE(wait_until([&] {
    const pid_t now = spare_of(program);
    return (now > 0 && now != first) || state_of(program.pid()) == 'Z';
  }));
  EXPECT_EQ(program.wait(), 0) << program.err();
  EXPECT_PRED2(contains, program.err(), "lost a spare worker: signal 9");
  EXPECT_EQ(digest_in(program.out()), quiet_digest());
}

// It can't fork, so the rank is started without it.
TEST(Spare, ThatIsStoppedDelaysTheRank) {
  const TemporaryFolder folder;
  Program program(training({"--spare-worker"}, kFaultyProgram),
                  {{"LOCKSTEP_FAULT", "kill@backward:step=30:rank=1"},
                   {"LOCKSTEP_FAULT_FOLDER", folder.path()}});
  ASSERT_TRUE(program.wait_for_output("step 2/60")) << program.err();
  const pid_t spare = spare_of(program);
  ASSERT_GT(spare, 0);
  ::kill(spare, SIGSTOP);
  ASSERT_TRUE(program.wait_for_output("resumed from memory")) << program.err();
  EXPECT_TRUE(wait_until([&] {
    const pid_t now = spare_of(program);
    return (now > 0 && now != spare) || state_of(program.pid()) == 'Z';
  }));
  EXPECT_EQ(program.wait(), 0) << program.err();
  EXPECT_PRED2(contains, program.err(),
               "lost a spare worker: it forks no worker");
  EXPECT_PRED2(contains, program.err(), "[launch] 1 failure survived\n");
  EXPECT_EQ(digest_in(program.out()), quiet_digest());
}

TEST(Spare, EndsWithAJobThatASignalEnds) {
  Program program(training({"--spare-worker"}, kProgram));
  ASSERT_TRUE(program.wait_for_output("step 3/60")) << program.err();
  const pid_t spare = spare_of(program);
  ASSERT_GT(spare, 0);
  program.send(SIGINT);
  EXPECT_NE(program.wait(), 0);
  EXPECT_TRUE(is_gone(spare));
}

TEST(Spare, GivesWorkersTheEnvironmentAndLogsOfTheirRank) {
  const auto output = [](const std::vector<std::string>& more, int rank) {
    const TemporaryFolder folder;
    Words options{"--log-dir", folder.path("logs"), "--redirects",
                  "3",         "--rdzv-id",         "a"};
    options.insert(options.end(), more.begin(), more.end());
    const Ended ended = run_lockstep(job(options, {kPrintEnvironment}));
    EXPECT_EQ(ended.code, 0) << ended.err;
    const auto run = *std::filesystem::directory_iterator(folder.path("logs"));
    std::string text = content_of(run.path() / "attempt_0" /
                                  std::to_string(rank) / "stdout.log");
    // The port of the store is a free one.
    const auto port = text.find("ports");
    return text.substr(0, port);
  };
  for (const int rank : {0, 1}) {
    const std::string forked = output({"--spare-worker"}, rank);
    EXPECT_PRED2(contains, forked, std::to_string(rank));
    EXPECT_EQ(forked, output({}, rank));
  }
}

TEST(Spare, OfAProgramWithoutLockstepIsDoneWithout) {
  const Ended ended =
      run_sh({"--nproc-per-node", "2", "--spare-worker"},
             "[ $RANK = spare ] && exit 3; echo I am $RANK of $WORLD_SIZE");
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_PRED2(contains, ended.out, "[rank 0] I am 0 of 2\n");
  EXPECT_PRED2(contains, ended.out, "[rank 1] I am 1 of 2\n");
  EXPECT_PRED2(contains, ended.err,
               "lost a spare worker: exit code 3; workers start without one");
}

}  // namespace
}  // namespace lockstep::spare_test
