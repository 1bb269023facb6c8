#include "lockstep/launch/workers/thread_stacks.h"

#include <filesystem>
#include <fstream>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/subprocess.h"
#include "lockstep/launch/output/printable.h"

namespace lockstep::launch {
namespace {

// With what it may take to end it, 10 s.
constexpr double kPatienceS = 5;
constexpr size_t kMostBytes = size_t{64} << 10;

// "" if it is not installed, or knows nothing.
std::string by_program(pid_t pid) {
  Command command;
  command.arguments = {"eu-stack", "-n40", "-p" + std::to_string(pid)};
  command.deadline_s = kPatienceS;
  try {
    return run_command(command).out;
  } catch (const IoError&) {
    return {};
  }
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
    text = by_kernel(pid) + "(install elfutils for whole stacks)\n";
  }
  return printable(text, kMostBytes);
}

}  // namespace lockstep::launch
