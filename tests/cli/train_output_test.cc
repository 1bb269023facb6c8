// Tests the output of `train` that a new user sees, on a pipe and on a
// terminal.
// Tier: full, by case. Each case starts the program.
#include <algorithm>
#include <csignal>
#include <poll.h>
#include <pty.h>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/cores.h"
#include "lockstep/base/exit_code.h"
#include "lockstep/base/stopwatch.h"
#include "tests/base/expect_problem.h"
#include "tests/base/temporary_folder.h"
#include "tests/cli/program.h"

namespace lockstep::train_output_test {
namespace {

using Words = std::vector<std::string>;

Words train(const Words& more) {
  Words words{"train", "--max-steps", "3", "--batch-size", "8", "--no-eval"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

/// Returns the output of the program on a terminal with 100 columns.
std::string shown_on_a_terminal(const Words& arguments) {
  Words words{kProgram};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  winsize size{.ws_row = 40, .ws_col = 100, .ws_xpixel = 0, .ws_ypixel = 0};
  int fd = -1;
  const pid_t pid = ::forkpty(&fd, nullptr, nullptr, &size);
  if (pid == 0) {
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  std::string text;
  const Stopwatch watch;
  // The read fails with EIO after the last writer has closed.
  for (char buffer[4096]; watch.seconds() < 120;) {
    pollfd ready{fd, POLLIN, 0};
    if (::poll(&ready, 1, 1000) <= 0) continue;
    const ssize_t got = ::read(fd, buffer, sizeof buffer);
    if (got <= 0) break;
    text.append(buffer, static_cast<size_t>(got));
  }
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  ::close(fd);
  return text;
}

class Strategies : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (allowed_cores().size() < 2) GTEST_SKIP() << "needs 2 cores";
  }
  Words train_on_two(Words more) const {
    more.insert(more.end(), {"--strategy", GetParam(), "--devices", "2xcpu"});
    return train(more);
  }
};

INSTANTIATE_TEST_SUITE_P(Train, Strategies, testing::Values("dp", "ddp"),
                         [](const auto& info) {
                           return std::string(info.param);
                         });

TEST_P(Strategies, ShowABarOnATerminalWithStepAndTime) {
  const auto text = shown_on_a_terminal(train_on_two({}));
  EXPECT_PRED2(contains, text, " 3/3 | Step: ");
  EXPECT_PRED2(contains, text, "ms | Tot: ");
  EXPECT_PRED2(contains, text, " | loss ");
  EXPECT_PRED2(contains, text, " | 0 s left");
  EXPECT_PRED2(contains, text, "\r\x1b[2K");  // the bar is erased
  EXPECT_FALSE(contains(text, "samples/s | ")) << "lines: " << text;
}

TEST_P(Strategies, EndWithASummary) {
  const auto ended = run_lockstep(train_on_two({"--shards", "4"}));
  ASSERT_EQ(ended.code, 0) << ended.err;
  const auto summary = ended.out.substr(ended.out.find("\nsteps "));
  for (const char* part :
       {"\nsteps      3 in ", " samples/s\n", "\nstep time  median ", ", p90 ",
        "\ncpu:0      busy ", "\ncpu:1      busy ", " %, memory peak ",
        "\ntraining   loss ", ", accuracy ", "\nparameter_sha256 ",
        " (4 shards, "}) {
    EXPECT_PRED2(contains, summary, part);
  }
}

TEST_P(Strategies, SayWhatTheyMakeWithinThreeSeconds) {
  double fastest = 1e9;
  for (int i = 0; i < 3; ++i) {
    const Stopwatch watch;
    Program program(train_on_two({}));
    ASSERT_TRUE(program.wait_for_output("\n")) << program.err();
    fastest = std::min(fastest, watch.seconds());
    EXPECT_EQ(
        program.out().find(
            std::string("training cnn on built-in images with strategy ") +
            GetParam() + "\n"),
        0u)
        << program.out();
    EXPECT_EQ(program.wait(), 0) << program.err();
    EXPECT_EQ(count_of(program.out(), "training cnn"), 1) << program.out();
    EXPECT_EQ(count_of(program.out(),
                       "94,762 parameters | 10,000 generated images | 3 "
                       "steps of 8, in 2 shards\n"),
              1)
        << program.out();
  }
  EXPECT_LT(fastest, 3);
}

TEST(DdpErrors, AreSaidOnce) {
  if (allowed_cores().size() < 2) GTEST_SKIP() << "needs 2 cores";
  const TemporaryFolder folder;
  const Words ddp{"--strategy", "ddp", "--devices", "2xcpu"};
  const std::vector<std::pair<Words, std::string>> cases{
      {{"--data", "cifar10", "--data-dir", folder.path("none")},
       "[data] can't open folder"},
      {{"--init-from", folder.path("none")}, "[checkpoint] can't read"},
      {{"--model", "mlp", "--lr", "1e30", "--schedule", "constant"},
       "is not finite"}};
  for (const auto& [words, message] : cases) {
    Words all = train(words);
    all.insert(all.end(), ddp.begin(), ddp.end());
    const auto ended = run_lockstep(all);
    EXPECT_EQ(ended.code, message == "is not finite" ? kExitTrainingFailed : 1);
    EXPECT_EQ(count_of(ended.out + ended.err, message), 1) << ended.err;
    EXPECT_PRED2(contains, ended.err, "root cause: rank ");
  }
}

// The last batch has three samples for two ranks: two and one.
TEST(DdpErrors, NameALossThatIsNotFiniteOnAnUnevenSplit) {
  if (allowed_cores().size() < 2) GTEST_SKIP() << "needs 2 cores";
  const auto ended =
      run_lockstep({"train", "--model", "mlp", "--no-eval", "--max-steps", "20",
                    "--strategy", "ddp", "--devices", "2xcpu", "--batch-size",
                    "3", "--lr", "1e9"});
  EXPECT_EQ(ended.code, kExitTrainingFailed);
  expect_problem(ended.err, ErrorCode::kNotFinite, {"step ", "first seen in"});
}

}  // namespace
}  // namespace lockstep::train_output_test
