#include "lockstep/launch/thread_stacks.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>

#include "lockstep/base/stopwatch.h"
#include "lockstep/launch/pipe.h"
#include "lockstep/launch/printable.h"

namespace lockstep::launch {
namespace {

constexpr double kPatienceS = 10;
constexpr size_t kMostBytes = size_t{64} << 10;
constexpr const char* kProgram = "eu-stack";

// What it writes until it ends, or until our patience does.
std::string output_of(pid_t program, const FileDescriptor& pipe) {
  std::string text;
  std::array<char, 4096> piece;
  const Stopwatch watch;
  while (watch.seconds() < kPatienceS && text.size() < kMostBytes) {
    pollfd ready{pipe.get(), POLLIN, 0};
    if (::poll(&ready, 1, 100) <= 0) continue;
    const ssize_t got = ::read(pipe.get(), piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    text.append(piece.data(), static_cast<size_t>(got));
  }
  ::kill(program, SIGKILL);
  while (::waitpid(program, nullptr, 0) < 0 && errno == EINTR) {
  }
  return text;
}

std::string by_program(pid_t pid) {
  Pipe pipe = make_pipe();
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, pipe.write.get(), 1);
  ::posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", 1, 0);
  std::string option = "-p" + std::to_string(pid);
  std::string count = "-n40";
  std::string name = kProgram;
  std::array<char*, 4> arguments{name.data(), count.data(), option.data(),
                                 nullptr};
  pid_t program = -1;
  const int error = ::posix_spawnp(&program, kProgram, &actions, nullptr,
                                   arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  pipe.write.close();
  return error == 0 ? output_of(program, pipe.read) : "";
}

std::string line_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// The name of each thread, its state and the system call that it is in.
std::string by_kernel(pid_t pid) {
  std::string text;
  std::error_code error;
  const std::filesystem::path tasks = fmt::format("/proc/{}/task", pid);
  // It may end meanwhile.
  for (std::filesystem::directory_iterator task(tasks, error), end;
       !error && task != end; task.increment(error)) {
    const std::string stat = line_of(task->path() / "stat");
    const auto bracket = stat.rfind(')');
    const char state = bracket + 2 < stat.size() ? stat[bracket + 2] : '?';
    text += fmt::format(
        "thread {} ({}): state {}, in {}, system call {}\n",
        task->path().filename().string(), line_of(task->path() / "comm"), state,
        line_of(task->path() / "wchan"), line_of(task->path() / "syscall"));
  }
  return text;
}

}  // namespace

std::string stacks_of(pid_t pid) {
  std::string text = by_program(pid);
  if (text.empty()) {
    text = fmt::format("{}(install {} for whole stacks)\n", by_kernel(pid),
                       "elfutils");
  }
  return printable(text, kMostBytes);
}

}  // namespace lockstep::launch
