#include "lockstep/base/child_process.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <optional>
#include <poll.h>
#include <sstream>
#include <string>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/cores.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/process.h"
#include "tests/base/is_error.h"
#include "tests/base/refused_call.h"
#include "tests/base/temporary_folder.h"

namespace lockstep::child_process_test {
namespace {

constexpr int kDeadlineMs = 30'000;

ChildOptions program(std::vector<std::string> arguments) {
  ChildOptions options;
  options.program = arguments.front();
  options.arguments = std::move(arguments);
  options.environment = merged_environment({});
  return options;
}

ChildOptions shell(const std::string& script) {
  return program({"/bin/sh", "-c", script});
}

bool becomes_readable(int fd) {
  pollfd polled{fd, POLLIN, 0};
  return ::poll(&polled, 1, kDeadlineMs) == 1;
}

// Returns everything that is written to `fd` until all of its writers have
// closed it.
std::string read_all(const FileDescriptor& fd) {
  std::string text;
  std::array<char, 4096> buffer;
  for (;;) {
    if (!becomes_readable(fd.get())) {
      ADD_FAILURE() << "a writer is left";
      return text;
    }
    const ssize_t size = ::read(fd.get(), buffer.data(), buffer.size());
    if (size <= 0) return text;
    text.append(buffer.data(), static_cast<size_t>(size));
  }
}

std::string output_of(ChildOptions options) {
  Pipe out = make_pipe();
  options.out_fd = out.write.get();
  const ChildProcess child(options);
  out.write.close();
  return read_all(out.read);
}

std::optional<ProcessEnd> end_of(ChildProcess& child) {
  if (child.is_running()) becomes_readable(child.end_fd());
  return child.poll_end();
}

// Returns the value of a line "Name:  value" in /proc/self/status of a program
// that is started with `options`.
std::string status_of(ChildOptions options, const std::string& name) {
  options.program = "/bin/cat";
  options.arguments = {"cat", "/proc/self/status"};
  std::istringstream lines(output_of(options));
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(name + ":")) continue;
    return line.substr(line.find_first_not_of(" \t", name.size() + 1));
  }
  ADD_FAILURE() << "no " << name;
  return {};
}

bool has_signal(const std::string& mask, int signal) {
  return (std::stoull(mask, nullptr, 16) >> (signal - 1) & 1) != 0;
}

// Ignores a signal while this object exists.
class Ignored {
 public:
  explicit Ignored(int signal)
      : signal_(signal), before_(std::signal(signal, SIG_IGN)) {}
  ~Ignored() { std::signal(signal_, before_); }
  Ignored(const Ignored&) = delete;
  Ignored& operator=(const Ignored&) = delete;

 private:
  int signal_;
  void (*before_)(int);
};

void write_program(const std::string& path, const std::string& text,
                   mode_t mode) {
  write_text(path, text);
  ASSERT_EQ(::chmod(path.c_str(), mode), 0);
}

int start_error(const ChildOptions& options) {
  try {
    const ChildProcess child(options);
  } catch (const ProcessStartError& error) {
    EXPECT_TRUE(
        is_error(error.what(), ErrorCode::kProcessStart, {options.program}));
    return error.error();
  }
  ADD_FAILURE() << "it was started";
  return 0;
}

TEST(ChildProcess, TellsWhyTheProgramCantBeStarted) {
  const TemporaryFolder folder;
  write_program(folder.path("text"), "no program\n", 0755);
  write_program(folder.path("script"), "#!/bin/sh\n", 0644);
  write_program(folder.path("orphan"), "#!/no/such/shell\n", 0755);
  EXPECT_EQ(start_error(program({folder.path("missing")})), ENOENT);
  EXPECT_EQ(start_error(program({folder.path("text")})), ENOEXEC);
  EXPECT_EQ(start_error(program({folder.path("script")})), EACCES);
  EXPECT_EQ(start_error(program({folder.path("orphan")})), ENOENT);
}

TEST(ChildProcess, NamesAnOutputThatIsNotOpen) {
  ChildOptions options = shell("exit 0");
  options.out_fd = 1 << 20;
  EXPECT_EQ(start_error(options), EBADF);
}

TEST(ChildProcess, SearchesPathOnlyIfToldTo) {
  const TemporaryFolder folder;
  // Files that can't be run, and folders that do not exist, are skipped.
  write_program(folder.path("first/greet"), "#!/bin/sh\necho no\n", 0644);
  write_program(folder.path("second/greet"), "#!/bin/sh\necho yes\n", 0755);
  const std::string before = std::getenv("PATH");
  const std::string path = folder.path("none") + ":" + folder.path("first") +
                           ":" + folder.path("second") + ":" + before;
  ::setenv("PATH", path.c_str(), 1);
  ChildOptions options = program({"greet"});
  EXPECT_EQ(start_error(options), ENOENT);
  options.searches_path = true;
  EXPECT_EQ(output_of(options), "yes\n");
  const std::string without = folder.path("first") + ":" + folder.path("none");
  ::setenv("PATH", without.c_str(), 1);
  EXPECT_EQ(start_error(options), EACCES);
  ::setenv("PATH", folder.path("none").c_str(), 1);
  EXPECT_EQ(start_error(options), ENOENT);
  ::setenv("PATH", before.c_str(), 1);
}

TEST(ChildProcess, TellsExitCodesFromSignals) {
  ChildProcess exiting(shell("exit 3"));
  const auto exited = end_of(exiting);
  ASSERT_TRUE(exited);
  EXPECT_EQ(exited->exit_code, 3);
  EXPECT_EQ(exited->signal, 0);
  EXPECT_TRUE(exited->is_known);
  ChildProcess dying(shell("kill -9 $$"));
  const auto killed = end_of(dying);
  ASSERT_TRUE(killed);
  EXPECT_EQ(killed->signal, SIGKILL);
}

TEST(ChildProcess, HasADescriptorThatIsReadableAtItsEnd) {
  const TemporaryFolder folder;
  const std::string fifo = folder.path("go");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  ChildProcess child(shell("read word < " + fifo));
  pollfd ended{child.end_fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&ended, 1, 0), 0);
  EXPECT_FALSE(child.poll_end());
  EXPECT_TRUE(child.is_running());
  write_text(fifo, "word\n");
  EXPECT_TRUE(becomes_readable(child.end_fd()));
  EXPECT_TRUE(child.poll_end());
  EXPECT_LT(child.end_fd(), 0);
  EXPECT_FALSE(child.is_running());
}

// The program starts with the signals of a new login, whatever this process has
// done with its own signals.
TEST(ChildProcess, BlocksNoSignalAndIgnoresOnlyWhatItIsLeft) {
  const Ignored terminate(SIGTERM), user(SIGUSR2), hangup(SIGHUP);
  sigset_t blocked, before;
  ::sigemptyset(&blocked);
  ::sigaddset(&blocked, SIGUSR1);
  ASSERT_EQ(::pthread_sigmask(SIG_BLOCK, &blocked, &before), 0);
  ChildOptions options = program({"cat"});
  options.default_signals = {SIGTERM};
  const std::string mask = status_of(options, "SigBlk");
  const std::string ignored = status_of(options, "SigIgn");
  sigset_t now;
  ::pthread_sigmask(SIG_SETMASK, &before, &now);
  EXPECT_EQ(std::stoull(mask, nullptr, 16), 0u);
  EXPECT_FALSE(has_signal(ignored, SIGTERM));
  EXPECT_TRUE(has_signal(ignored, SIGUSR2));
  EXPECT_TRUE(has_signal(ignored, SIGHUP));
  // This thread blocks the same signals as before.
  EXPECT_TRUE(::sigismember(&now, SIGUSR1));
  EXPECT_FALSE(::sigismember(&now, SIGUSR2));
}

TEST(ChildProcess, RunsOnItsCores) {
  const int core = allowed_cores().back();
  ChildOptions options = program({"cat"});
  options.cores = {core};
  EXPECT_EQ(status_of(options, "Cpus_allowed_list"), std::to_string(core));
}

TEST(ChildProcess, InheritsOnlyItsOutputs) {
  const int leaked = ::open("/dev/null", O_RDONLY);  // without O_CLOEXEC
  ASSERT_GE(leaked, 3);
  const std::string opened = "/proc/self/fd/" + std::to_string(leaked);
  EXPECT_EQ(output_of(shell("test -e " + opened + " && echo open; cat")), "");
  ::close(leaked);
}

// The pipe then gets the numbers of stdin and stdout.
TEST(ChildProcessDeathTest, RunsInAProcessWithoutStandardFiles) {
  const auto act = [] {
    ::close(0);
    ::close(1);
    const bool is_right = output_of(shell("cat; echo out")) == "out\n";
    std::_Exit(is_right ? 0 : 1);
  };
  EXPECT_EXIT(act(), testing::ExitedWithCode(0), "");
}

TEST(ChildProcess, EndsItsGroupWithTheObject) {
  Pipe out = make_pipe();
  ChildOptions options = shell("sleep 600 & echo ready; wait");
  options.out_fd = out.write.get();
  {
    std::vector<ChildProcess> children;
    children.push_back(ChildProcess(options));
    ChildProcess moved = std::move(children.back());
    children.clear();
    out.write.close();
    std::array<char, 6> ready{};
    ASSERT_TRUE(becomes_readable(out.read.get()));
    ASSERT_EQ(::read(out.read.get(), ready.data(), ready.size()), 6);
    EXPECT_FALSE(moved.poll_end());
  }
  // The sleep also held the pipe open.
  EXPECT_EQ(read_all(out.read), "");
}

TEST(ChildProcess, GetsTimeToEndIfThereIsAGrace) {
  Pipe out = make_pipe();
  ChildOptions options =
      shell("trap 'exit 7' TERM; echo ready; while :; do sleep 0.01; done");
  options.out_fd = out.write.get();
  options.grace_s = 30;
  ChildProcess child(options);
  ASSERT_TRUE(becomes_readable(out.read.get()));
  child.end();
  EXPECT_FALSE(child.is_running());
  EXPECT_EQ(child.poll_end()->exit_code, 7);
  child.end();  // has no effect
}

TEST(ChildProcess, EndsWithTheThreadThatStartedItOnlyIfToldTo) {
  std::optional<ChildProcess> dying, staying;
  std::thread([&] {
    ChildOptions options = program({"/bin/sleep", "600"});
    staying.emplace(options);
    options.dies_with_thread = true;
    dying.emplace(options);
  }).join();
  const auto end = end_of(*dying);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->signal, SIGKILL);
  staying->send(SIGTERM);
  EXPECT_EQ(end_of(*staying).value_or(ProcessEnd()).signal, SIGTERM);
}

TEST(ChildProcess, KnowsThatItWasReapedWhereSigchldIsIgnored) {
  const Ignored child_ended(SIGCHLD);
  for (int i = 0; i < 10; ++i) {
    // It may end before or after the constructor opens the descriptor.
    ChildProcess child(shell("exit 3"));
    const auto end = end_of(child);
    ASSERT_TRUE(end);
    EXPECT_FALSE(end->is_known);
    EXPECT_LT(child.end_fd(), 0);
    child.send(SIGTERM);  // to nobody
  }
  ChildProcess killed(program({"/bin/sleep", "600"}));
  killed.end();
  EXPECT_FALSE(killed.poll_end()->is_known);
}

TEST(ChildProcess, IsWatchedWithoutPidfdOpen) {
  for (const int error : {ENOSYS, EPERM}) {
    with_refused_call(SYS_pidfd_open, error, [] {
      Pipe in = make_pipe();
      ChildOptions options = shell("read line; exit 7");
      options.in_fd = in.read.get();
      ChildProcess child(options);
      pollfd ended{child.end_fd(), POLLIN, 0};
      EXPECT_EQ(::poll(&ended, 1, 20), 0) << "it runs";
      in.write.close();
      EXPECT_TRUE(becomes_readable(child.end_fd()));
      ASSERT_TRUE(child.poll_end());
      EXPECT_EQ(child.poll_end()->exit_code, 7);
    });
  }
}

}  // namespace
}  // namespace lockstep::child_process_test
