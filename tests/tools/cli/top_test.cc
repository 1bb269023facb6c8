// `lockstep top` during a run. metrics_test.cc tests its metrics.
// Tier: nightly, by case. A tool.

#include <chrono>
#include <csignal>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <sys/stat.h>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/process.h"
#include "lockstep/monitor/job_folder.h"
#include "tests/base/expect_problem.h"
#include "tests/base/temporary_folder.h"
#include "tests/cli/processes.h"
#include "tests/cli/program.h"
#include "tests/monitor/statuses.h"

namespace lockstep::top_test {
namespace {

using Environment = std::map<std::string, std::string>;

class Top : public ::testing::Test {
 protected:
  // Jobs of other users are not shown.
  Environment environment() const {
    return {{"XDG_RUNTIME_DIR", folder_.path("")}, {"LC_ALL", "C.UTF-8"}};
  }

  /// Starts two ranks that train until they are stopped.
  void start_run() {
    run_ = std::make_unique<Program>(
        std::vector<std::string>{"train", "--model", "mlp", "--strategy", "ddp",
                                 "--devices", "2xcpu", "--batch-size", "64",
                                 "--epochs", "100000", "--no-eval", "--out-dir",
                                 folder_.path("out")},
        environment());
    ASSERT_TRUE(run_->wait_for_output("step 10/")) << run_->err();
  }
  void stop_run() {
    run_->send(SIGINT);
    run_->wait();
  }

  TemporaryFolder folder_;
  std::unique_ptr<Program> run_;
};

/// A separate terminal, made by tmux.
class Terminal {
 public:
  Terminal(const std::string& socket, int width, int height,
           const Environment& environment, const std::string& command)
      : socket_(socket) {
    std::string line;
    for (const auto& [name, value] : environment) {
      line += name + "=" + value + " ";
    }
    tmux({"-f", "/dev/null", "new-session", "-d", "-s", "t", "-x",
          std::to_string(width), "-y", std::to_string(height),
          "env " + line + command + "; echo ended $?; cat"});
  }
  ~Terminal() { tmux({"kill-server"}); }

  std::string screen() const { return tmux({"capture-pane", "-p", "-t", "t"}); }
  void press(const std::string& key) const {
    tmux({"send-keys", "-t", "t", key});
  }
  void resize(int width, int height) const {
    tmux({"resize-window", "-t", "t", "-x", std::to_string(width), "-y",
          std::to_string(height)});
  }
  /// Returns the first screen that contains `text`.
  std::string screen_with(const std::string& text) const {
    std::string seen;
    wait_until([&] {
      seen = screen();
      return contains(seen, text);
    });
    return seen;
  }

 private:
  std::string tmux(std::vector<std::string> words) const {
    words.insert(words.begin(), {"tmux", "-u", "-S", socket_});
    return run_command({.arguments = std::move(words),
                        .environment = {{"LC_ALL", "C.UTF-8"}},
                        .deadline_s = 20})
        .out;
  }

  std::string socket_;
};

TEST_F(Top, ShowsARunInATerminalOfAnySize) {
  start_run();
  const Terminal terminal(folder_.path("tmux"), 80, 24, environment(),
                          kProgram + " top");
  const std::string small = terminal.screen_with("LOSS of steps");
  for (const char* word :
       {"lockstep top - mlp, ddp, 2 ranks over shm", "training", "samples/s",
        "cpu:0", "cpu:1", "BUSY", "WAIT", "0 restarts", "q quit"}) {
    EXPECT_PRED2(contains, small, word);
  }
  EXPECT_FALSE(contains(small, "HOST")) << small;
  terminal.resize(200, 60);
  const std::string large = terminal.screen_with("HOST");
  EXPECT_PRED2(contains, large, "PID");
  EXPECT_PRED2(contains, large, "LOSS of steps");
  EXPECT_PRED2(contains, large, "q quit");
  terminal.press("q");
  EXPECT_PRED2(contains, terminal.screen_with("ended 0"), "ended 0");
  stop_run();
}

TEST_F(Top, EndsCleanlyAtCtrlC) {
  const Terminal terminal(folder_.path("tmux"), 80, 24, environment(),
                          kProgram + " top");
  EXPECT_PRED2(contains, terminal.screen_with("None of your jobs"),
               "None of your jobs");
  terminal.press("C-c");
  EXPECT_PRED2(contains, terminal.screen_with("ended 0"), "ended 0");
}

TEST_F(Top, IsPrintedOnceAndAsJson) {
  EXPECT_PRED2(contains, run_lockstep({"top", "--once"}, environment()).out,
               "none of your jobs is running on this host");
  start_run();
  const auto once = run_lockstep({"top", "--once"}, environment());
  EXPECT_EQ(once.code, 0) << once.err;
  EXPECT_PRED2(contains, once.out, "2 ranks over shm");
  EXPECT_FALSE(contains(once.out, "q quit")) << once.out;

  const auto ended =
      run_lockstep({"top", folder_.path("out"), "--json"}, environment());
  const auto json = nlohmann::json::parse(ended.out, nullptr, false);
  ASSERT_FALSE(json.is_discarded()) << ended.out << ended.err;
  const auto& ranks = json.at("jobs").at(0).at("ranks");
  ASSERT_EQ(ranks.size(), 2u);
  EXPECT_GT(ranks.at(0).at("step").get<int64_t>(), 10);
  EXPECT_GT(ranks.at(0).at("losses").size(), 2u);
  for (const auto& rank : ranks) {
    EXPECT_EQ(rank.at("activity"), "training");
    EXPECT_GT(rank.at("devices").at(0).at("busy_fraction").get<double>(), 0);
    // By then, both looks were noticed.
    EXPECT_TRUE(rank.at("wait_fraction").is_number()) << rank;
    EXPECT_TRUE(rank.at("communication_fraction").is_number()) << rank;
  }
  stop_run();
  EXPECT_PRED2(contains, run_lockstep({"top", "--once"}, environment()).out,
               "none of your jobs is running on this host");
}

// Anyone who can write to the folder chooses its name and its contents.
TEST_F(Top, IsNotSpoiltByTheNameOfAFolder) {
  const std::string out = folder_.path("a\x1b[2Jb\u009b1mc\u202ed") + "\xff";
  const monitor::StatusFile file("job", out, 0);
  file.write(monitor::status_of_rank(0));
  const auto once = run_lockstep({"top", out, "--once"}, environment());
  EXPECT_EQ(once.code, 0) << once.err;
  EXPECT_PRED2(contains, once.out, "a?[2Jb?1mc?d?");
  const auto json = run_lockstep({"top", out, "--json"}, environment());
  EXPECT_EQ(json.code, 0) << json.err;
  EXPECT_FALSE(nlohmann::json::parse(json.out, nullptr, false).is_discarded())
      << json.out;
  const auto none = run_lockstep({"top", out + "x", "--once"}, environment());
  EXPECT_EQ(none.code, 1);
  for (const std::string& text : {once.out, json.out, none.err}) {
    for (const char* part : {"\x1b", "\u009b", "\u202e", "\xff"}) {
      EXPECT_FALSE(contains(text, part)) << text;
    }
  }
}

TEST_F(Top, DoesNotWaitForPipes) {
  const std::string out = folder_.path("out");
  const monitor::StatusFile file("job", out, 0);
  file.write(monitor::status_of_rank(0));
  for (const char* name : {"/live/rank-1.json", "/live/watched"}) {
    ASSERT_EQ(::mkfifo((out + name).c_str(), 0600), 0);
  }
  const auto once = run_lockstep({"top", out, "--once"}, environment());
  EXPECT_EQ(once.code, 0) << once.err;
  EXPECT_PRED2(contains, once.out, "gpt-char");
}

TEST_F(Top, SaysWhatItCantShow) {
  const auto ended = run_lockstep({"top"}, environment());
  EXPECT_EQ(ended.code, 1);
  EXPECT_PRED2(contains, ended.err, "needs a terminal");
  EXPECT_PRED2(contains, ended.err, "--once");
  const auto nowhere =
      run_lockstep({"top", folder_.path("no"), "--once"}, environment());
  EXPECT_EQ(nowhere.code, 1);
  EXPECT_PRED2(contains, nowhere.err, "--out-dir");
}

}  // namespace
}  // namespace lockstep::top_test
