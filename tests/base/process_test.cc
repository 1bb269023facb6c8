#include "lockstep/base/process.h"

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <signal.h>
#include <string>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/stopwatch.h"
#include "lockstep/base/text.h"
#include "tests/base/is_error.h"
#include "tests/base/temporary_folder.h"

namespace lockstep {
namespace {

using End = CommandResult::End;

Command shell(const std::string& script) {
  Command command;
  command.arguments = {"/bin/sh", "-c", script};
  command.deadline_s = 30;
  return command;
}

// A folder that is removed after the test.
class Folder {
 public:
  Folder() : path_(testing::TempDir() + "subprocessXXXXXX") {
    if (::mkdtemp(path_.data()) == nullptr) std::abort();
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// Returns the process id that a script wrote with `echo $$ > path`.
pid_t read_pid(const std::string& path) {
  std::ifstream file(path);
  pid_t pid = 0;
  file >> pid;
  return pid;
}

// A killed orphan stays a zombie until its new parent has reaped it.
bool is_running(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string id, name, state;
  if (!(file >> id >> name >> state)) return false;
  return state != "Z" && state != "X";
}

bool ends_within(pid_t pid, double seconds) {
  const Stopwatch watch;
  while (is_running(pid)) {
    if (watch.seconds() > seconds) return false;
    ::usleep(1000);
  }
  return true;
}

TEST(Subprocess, KeepsOutputAndErrorsApart) {
  const auto result = run_command(shell("echo out; echo err >&2"));
  EXPECT_TRUE(result.ok());
  EXPECT_EQ(result.out, "out\n");
  EXPECT_EQ(result.err, "err\n");
}

TEST(Subprocess, TakesMoreOutputThanAPipeHolds) {
  const auto result =
      run_command(shell("head -c 3000000 /dev/zero; echo; echo last >&2"));
  EXPECT_EQ(result.out.size(), 3000001u);
  EXPECT_EQ(last_line(result.err), "last");
}

TEST(Subprocess, TellsExitCodesFromSignals) {
  const Command failing = shell("exit 3");
  const auto exited = run_command(failing);
  EXPECT_EQ(exited.end, End::kExited);
  EXPECT_EQ(exited.exit_code, 3);
  EXPECT_EQ(describe_end(exited, failing), "exit code 3");
  const Command killed = shell("kill -9 $$");
  const auto signalled = run_command(killed);
  EXPECT_EQ(signalled.end, End::kSignalled);
  EXPECT_EQ(describe_end(signalled, killed), "signal 9 (Killed)");
}

TEST(Subprocess, NamesAProgramThatCantBeStarted) {
  Command command;
  command.arguments = {"/no/such/program"};
  EXPECT_TRUE(is_error(error_of<IoError>([&] { run_command(command); }),
                       ErrorCode::kProcessStart, {"/no/such/program"}));
}

TEST(Subprocess, AddsToTheEnvironmentAndReplaces) {
  Command command = shell("echo $LOCKSTEP_TEST_A $HOME");
  command.environment = {{"LOCKSTEP_TEST_A", "x"}, {"HOME", "/elsewhere"}};
  EXPECT_EQ(run_command(command).out, "x /elsewhere\n");
}

TEST(Subprocess, ReadsNothingFromOurInput) {
  EXPECT_EQ(run_command(shell("cat; echo done")).out, "done\n");
}

TEST(Subprocess, EndsTheWholeGroupOnTheDeadline) {
  const Folder folder;
  const std::string child = folder.file("child");
  Command command =
      shell("sh -c 'echo $$ > " + child + "; exec sleep 600' & wait");
  command.deadline_s = 0.5;
  const Stopwatch watch;
  const auto result = run_command(command);
  EXPECT_EQ(result.end, End::kDeadline);
  EXPECT_EQ(describe_end(result, command), "not done after 0.5 s");
  EXPECT_LT(watch.seconds(), 20);
  const pid_t pid = read_pid(child);
  ASSERT_GT(pid, 0);
  EXPECT_TRUE(ends_within(pid, 10)) << "process " << pid << " is an orphan";
}

TEST(Subprocess, KillsAProgramThatIgnoresSigterm) {
  Command command = shell("trap '' TERM; echo ready; while :; do :; done");
  command.deadline_s = 0.2;
  const Stopwatch watch;
  EXPECT_EQ(run_command(command).end, End::kDeadline);
  EXPECT_GE(watch.seconds(), kGraceSeconds);
}

TEST(Subprocess, StopsWhenItIsAskedTo) {
  const Folder folder;
  const std::string mark = folder.file("started");
  Command command = shell("echo $$ > " + mark + "; exec sleep 600");
  command.stop = [&] { return read_pid(mark) > 0; };
  EXPECT_EQ(run_command(command).end, End::kStopped);
  EXPECT_TRUE(ends_within(read_pid(mark), 10));
}

// A free number may belong to another program by the time that the group gets
// SIGKILL.
TEST(Subprocess, KeepsTheNumberOfAnEndedProgramUntilItsGroupIsEnded) {
  const Folder folder;
  Command command = shell("echo $$ > " + folder.file("pid") + "; kill -9 $$");
  // It is called once more after the end, to ask whether the end was requested.
  bool is_known_at_the_end = false;
  command.stop = [&] {
    const pid_t pid = read_pid(folder.file("pid"));
    is_known_at_the_end =
        pid > 0 && std::filesystem::exists("/proc/" + std::to_string(pid));
    return false;
  };
  const auto result = run_command(command);
  EXPECT_EQ(result.end, End::kSignalled);
  EXPECT_EQ(result.signal, SIGKILL);
  EXPECT_TRUE(is_known_at_the_end);
  EXPECT_FALSE(std::filesystem::exists(
      "/proc/" + std::to_string(read_pid(folder.file("pid")))));
}

TEST(Subprocess, DoesNotWaitForAGrandchildThatHoldsThePipe) {
  const Stopwatch watch;
  const auto result = run_command(shell("sleep 600 & echo here"));
  EXPECT_EQ(result.out, "here\n");
  EXPECT_LT(watch.seconds(), 20);
}

TEST(OwnProgram, IsThisTestUnlessAnotherIsNamed) {
  EXPECT_EQ(std::filesystem::path(own_program()).filename(), "test_base");
  set_own_program("/another/program");
  EXPECT_EQ(own_program(), "/another/program");
  set_own_program("");
}

TEST(ProcessStat, KnowsStateAndParentWhateverTheNameIs) {
  Pipe pipe = make_pipe();
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_NAME, "a) Z 1 (b");
    [[maybe_unused]] const auto told = ::write(pipe.write.get(), "x", 1);
    for (;;) ::pause();
  }
  char letter = 0;
  ASSERT_EQ(::read(pipe.read.get(), &letter, 1), 1);
  EXPECT_EQ(parent_of(child), ::getpid());
  EXPECT_NE(process_stat(child)[0], 'Z');
  ::kill(child, SIGKILL);
  siginfo_t info{};
  ::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT);
  EXPECT_EQ(process_stat(child)[0], 'Z');
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(process_stat(child), "");
  EXPECT_EQ(parent_of(child), -1);
}

}  // namespace
}  // namespace lockstep
