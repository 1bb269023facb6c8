#include "lockstep/base/process.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <utility>

#include <climits>
#include <fmt/format.h>

#include "lockstep/base/child_process.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/stopwatch.h"

namespace lockstep {
namespace {

constexpr int kPollMs = 100;
// Largest output kept of each stream. The rest is dropped to limit memory.
constexpr size_t kMaxOutputBytes = 16 << 20;

std::string program_in_place;  // empty: the program that runs

ChildProcess start(const Command& command, const Pipe& out, const Pipe& err) {
  ChildOptions options;
  options.program = command.arguments.front();
  options.searches_path = true;
  options.arguments = command.arguments;
  options.environment = merged_environment(command.environment);
  options.out_fd = out.write.get();
  options.err_fd = command.shows_err ? -1 : err.write.get();
  options.grace_s = kGraceSeconds;
  options.dies_with_thread = true;  // this thread waits for it
  return ChildProcess(options);
}

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
  ChildProcess child = start(command, out, err);
  out.write.close();
  err.write.close();

  CommandResult result;
  const Stopwatch watch;
  while (!child.poll_end()) {
    if (command.stop && command.stop()) {
      result.end = CommandResult::End::kStopped;
    } else if (watch.seconds() > command.deadline_s) {
      result.end = CommandResult::End::kDeadline;
    } else {
      take_output(out, err, result, kPollMs);
      continue;
    }
    child.end();
    break;
  }
  // Take only the output that is there. A stray grandchild may hold the pipe
  // open forever.
  while ((out.read.is_open() || err.read.is_open()) &&
         take_output(out, err, result, 0)) {
  }
  if (result.end == CommandResult::End::kExited) {
    const ProcessEnd& end = *child.poll_end();
    result.exit_code = end.exit_code;
    result.signal = end.signal;
    if (end.signal != 0) {
      // Before a child has its own process group, it gets the signals of ours.
      const bool is_stopped = command.stop && command.stop();
      result.end = is_stopped ? CommandResult::End::kStopped
                              : CommandResult::End::kSignalled;
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
  if (!program_in_place.empty()) return program_in_place;
  std::array<char, PATH_MAX> path;
  const ssize_t length = ::readlink("/proc/self/exe", path.data(), path.size());
  if (length <= 0) {
    throw IoError({.code = ErrorCode::kProcessStart,
                   .what = fmt::format("can't read /proc/self/exe: {}",
                                       std::strerror(errno))});
  }
  return std::string(path.data(), static_cast<size_t>(length));
}

void set_own_program(std::string path) { program_in_place = std::move(path); }

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

FileDescriptor open_pidfd(pid_t pid) {
  FileDescriptor pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0U)));
  // Seccomp filters of older container runtimes answer EPERM to a call that
  // they don't know.
  if (!pidfd.is_open() && errno == EPERM) errno = ENOSYS;
  return pidfd;
}

}  // namespace lockstep
