#include "lockstep/base/process.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <iterator>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

#include <climits>
#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/stopwatch.h"

namespace lockstep {
namespace {

constexpr int kPollMs = 100;
// Of each stream; a program that writes more is cut, not the machine's memory.
constexpr size_t kMaxOutputBytes = 16 << 20;

[[noreturn]] void fail(const std::string& what, int error) {
  throw IoError({.code = ErrorCode::kProcessStart,
                 .what = fmt::format("{}: {}", what, std::strerror(error))});
}

// The child's attributes and files: RAII over posix_spawn's C interface.
struct SpawnPlan {
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_t files;
  SpawnPlan(const Pipe& out, const Pipe& err) {
    ::posix_spawnattr_init(&attributes);
    ::posix_spawn_file_actions_init(&files);
    ::posix_spawnattr_setpgroup(&attributes, 0);
    sigset_t none, defaults;
    ::sigemptyset(&none);
    ::sigemptyset(&defaults);
    for (const int signal : {SIGINT, SIGTERM, SIGPIPE, SIGHUP}) {
      ::sigaddset(&defaults, signal);
    }
    ::posix_spawnattr_setsigmask(&attributes, &none);
    ::posix_spawnattr_setsigdefault(&attributes, &defaults);
    ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP |
                                                POSIX_SPAWN_SETSIGMASK |
                                                POSIX_SPAWN_SETSIGDEF);
    ::posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    ::posix_spawn_file_actions_adddup2(&files, out.write.get(), 1);
    ::posix_spawn_file_actions_adddup2(&files, err.write.get(), 2);
  }
  SpawnPlan(const SpawnPlan&) = delete;
  SpawnPlan& operator=(const SpawnPlan&) = delete;
  ~SpawnPlan() {
    ::posix_spawn_file_actions_destroy(&files);
    ::posix_spawnattr_destroy(&attributes);
  }
};

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (auto& text : strings) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

// A running process group; what is left of it dies with this object.
class ProcessGroup {
 public:
  ProcessGroup(const Command& command, const Pipe& out, const Pipe& err) {
    const SpawnPlan plan(out, err);
    auto arguments = command.arguments;
    auto environment = merged_environment(command.environment);
    const int error = ::posix_spawnp(
        &pid_, arguments.front().c_str(), &plan.files, &plan.attributes,
        pointers(arguments).data(), pointers(environment).data());
    if (error != 0) fail("can't start " + arguments.front(), error);
  }
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;
  ~ProcessGroup() { end(); }

  // True once the leader has ended; how is then in end_of_leader(). It is not
  // reaped before its group is ended (WNOWAIT): until then its number, and so
  // the group's, can't become another program's.
  bool poll_end() {
    if (has_ended_) return true;
    siginfo_t info{};
    const int result = ::waitid(P_PID, static_cast<id_t>(pid_), &info,
                                WEXITED | WNOHANG | WNOWAIT);
    if (result != 0 && errno == ECHILD) {
      // Somebody who ignores SIGCHLD has it reaped: how it ended is not known.
      is_reaped_ = has_ended_ = true;
      end_.si_code = CLD_EXITED;
    } else if (result == 0 && info.si_pid == pid_) {
      has_ended_ = true;
      end_ = info;
    }
    return has_ended_;
  }
  const siginfo_t& end_of_leader() const { return end_; }

  void end() {
    if (!poll_end()) {
      ::kill(-pid_, SIGTERM);
      const Stopwatch watch;
      while (!poll_end() && watch.seconds() < kGraceSeconds) {
        ::poll(nullptr, 0, 10);
      }
    }
    if (is_reaped_) return;
    // Also when the leader has ended: the group may have outlived it.
    ::kill(-pid_, SIGKILL);
    while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
    is_reaped_ = true;
  }

 private:
  pid_t pid_ = -1;
  siginfo_t end_{};
  bool has_ended_ = false;
  bool is_reaped_ = false;
};

void append_available(FileDescriptor& fd, std::string& text) {
  std::array<char, 64 * 1024> buffer;
  const ssize_t count = ::read(fd.get(), buffer.data(), buffer.size());
  if (count > 0) {
    const size_t room =
        kMaxOutputBytes - std::min(kMaxOutputBytes, text.size());
    text.append(buffer.data(), std::min(room, static_cast<size_t>(count)));
  } else if (count == 0 || (errno != EINTR && errno != EAGAIN)) {
    fd.close();
  }
}

// Waits up to `timeout_ms` for output and takes it. Returns whether any came.
bool take_output(Pipe& out, Pipe& err, CommandResult& result, int timeout_ms) {
  std::array<pollfd, 2> fds{
      {{out.read.get(), POLLIN, 0}, {err.read.get(), POLLIN, 0}}};
  if (::poll(fds.data(), fds.size(), timeout_ms) <= 0) return false;
  if (fds[0].revents != 0) append_available(out.read, result.out);
  if (fds[1].revents != 0) append_available(err.read, result.err);
  return fds[0].revents != 0 || fds[1].revents != 0;
}

}  // namespace

std::vector<std::string> merged_environment(
    const std::map<std::string, std::string>& variables) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (!variables.contains(text.substr(0, text.find('=')))) {
      result.push_back(text);
    }
  }
  for (const auto& [name, value] : variables) {
    result.push_back(name + "=" + value);
  }
  return result;
}

CommandResult run_command(const Command& command) {
  Pipe out = make_pipe();
  Pipe err = make_pipe();
  ProcessGroup group(command, out, err);
  out.write.close();
  err.write.close();

  CommandResult result;
  const Stopwatch watch;
  while (!group.poll_end()) {
    if (command.stop && command.stop()) {
      result.end = CommandResult::End::kStopped;
    } else if (watch.seconds() > command.deadline_s) {
      result.end = CommandResult::End::kDeadline;
    } else {
      take_output(out, err, result, kPollMs);
      continue;
    }
    group.end();
    break;
  }
  // Only what is there: a stray grandchild may hold the pipe open for ever.
  while ((out.read.is_open() || err.read.is_open()) &&
         take_output(out, err, result, 0)) {
  }
  if (result.end == CommandResult::End::kExited) {
    const siginfo_t& ended = group.end_of_leader();
    if (ended.si_code != CLD_EXITED) {
      // Until it has a group of its own, a child gets the signals of ours.
      const bool is_ours = command.stop && command.stop();
      result.end = is_ours ? CommandResult::End::kStopped
                           : CommandResult::End::kSignalled;
      result.signal = ended.si_status;
    } else {
      result.exit_code = ended.si_status;
    }
  }
  return result;
}

std::string describe_end(const CommandResult& result, const Command& command) {
  switch (result.end) {
    case CommandResult::End::kExited:
      return fmt::format("exit code {}", result.exit_code);
    case CommandResult::End::kSignalled:
      return fmt::format("signal {} ({})", result.signal,
                         ::strsignal(result.signal));
    case CommandResult::End::kDeadline:
      return fmt::format("not done after {:g} s", command.deadline_s);
    case CommandResult::End::kStopped:
      return "stopped";
  }
  return {};
}

std::string own_program() {
  std::array<char, PATH_MAX> path;
  const ssize_t length = ::readlink("/proc/self/exe", path.data(), path.size());
  if (length <= 0) fail("can't read /proc/self/exe", errno);
  return std::string(path.data(), static_cast<size_t>(length));
}

std::string process_stat(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto end_of_name = text.rfind(") ");
  return end_of_name == std::string::npos ? "" : text.substr(end_of_name + 2);
}

pid_t parent_of(pid_t pid) {
  const std::string fields = process_stat(pid);
  return fields.size() > 2 ? std::atoi(fields.c_str() + 2) : -1;
}

}  // namespace lockstep
