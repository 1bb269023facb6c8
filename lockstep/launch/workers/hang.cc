#include "lockstep/launch/workers/hang.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/printable.h"
#include "lockstep/base/process.h"
#include "lockstep/shm/peer_process.h"

namespace lockstep::launch {
namespace {

using Progress = std::pair<uint64_t, uint64_t>;

double seconds_since(uint64_t heartbeat_ns) {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  const auto then = std::chrono::nanoseconds(heartbeat_ns);
  return std::chrono::duration<double>(now - then).count();
}

// Returns true if a rank may wait for others in this phase.
bool is_collective(control::Phase phase) {
  return phase == control::Phase::kAllReduce ||
         phase == control::Phase::kUpdate ||
         phase == control::Phase::kCheckpoint;
}

std::string state_of(const Worker& worker) {
  const pid_t pid = worker.process.pid();
  try {
    return shm::PeerProcess(pid, shm::start_time_of(pid)).state();
  } catch (const CommError&) {
    return "has ended";
  }
}

// Together with the time to end eu-stack, this is 10 s.
constexpr double kStacksTimeoutS = 5;
constexpr size_t kMaxBytes = size_t{64} << 10;

// Returns the output of eu-stack, or "" if it is not installed or fails.
std::string by_program(pid_t pid) {
  Command command;
  command.arguments = {"eu-stack", "-n40", "-p" + std::to_string(pid)};
  command.deadline_s = kStacksTimeoutS;
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

// Returns the name of each thread, its state and its current system call.
std::string by_kernel(pid_t pid) {
  std::string text;
  std::error_code error;
  const std::filesystem::path tasks = fmt::format("/proc/{}/task", pid);
  // The process may end in the meantime.
  for (std::filesystem::directory_iterator task(tasks, error), end;
       !error && task != end; task.increment(error)) {
    const pid_t id = std::atoi(task->path().filename().c_str());
    const std::string fields = process_stat(id);
    text += fmt::format("thread {} ({}): state {}, in {}, system call {}\n", id,
                        line_of(task->path() / "comm"), fields.substr(0, 1),
                        line_of(task->path() / "wchan"),
                        line_of(task->path() / "syscall"));
  }
  return text;
}

// Returns the stacks of all threads. Takes at most 10 s.
std::string stacks_of(pid_t pid) {
  std::string text = by_program(pid);
  if (text.empty()) {
    text = by_kernel(pid) + "(install elfutils for whole stacks)\n";
  }
  return printable(text, kMaxBytes);
}

}  // namespace

std::optional<Hung> hung_worker(const WorkerTeam& team, double timeout_s) {
  double idle_s = std::numeric_limits<double>::infinity();
  Progress least(UINT64_MAX, UINT64_MAX);
  Progress most(0, 0);
  size_t slowest = 0;
  for (size_t i = 0; i < team.workers().size(); ++i) {
    const Worker& worker = team.workers()[i];
    const control::WorkerSlot& slot = team.slot_of(worker);
    const uint64_t heartbeat_ns = slot.heartbeat_ns.load();
    const bool tells =
        heartbeat_ns != 0 && slot.phase.load() != control::Phase::kEnd;
    if (!worker.process.is_running() || worker.waits || !worker.hang.empty() ||
        !tells) {
      return std::nullopt;
    }
    idle_s = std::min(idle_s, seconds_since(heartbeat_ns));
    const Progress progress(slot.steps.load(), slot.collectives.load());
    most = std::max(most, progress);
    if (progress >= least) continue;
    least = progress;
    slowest = i;
  }
  if (team.workers().empty() || idle_s < timeout_s) return std::nullopt;
  const auto is_stopped = [](const Worker& worker) {
    return state_of(worker).find("stopped") != std::string::npos;
  };
  const auto stopped =
      std::find_if(team.workers().begin(), team.workers().end(), is_stopped);
  if (stopped != team.workers().end()) {
    slowest = static_cast<size_t>(stopped - team.workers().begin());
  }
  const Worker& worker = team.workers()[slowest];
  const control::WorkerSlot& slot = team.slot_of(worker);
  const bool waits_for_others = stopped == team.workers().end() &&
                                least == most && is_collective(slot.phase);
  if (waits_for_others && idle_s < 3 * timeout_s) return std::nullopt;
  return Hung{
      slowest,
      fmt::format("hung for {:.0f} s in {} after {} (the process {})", idle_s,
                  control::name_of(slot.phase.load()),
                  counted(static_cast<int64_t>(slot.steps.load()), "step"),
                  state_of(worker)),
      stacks_of(worker.process.pid())};
}

std::vector<int> silent_ranks(const WorkerTeam& team) {
  std::vector<int> ranks;
  for (const Worker& worker : team.workers()) {
    if (worker.process.is_running() &&
        team.slot_of(worker).heartbeat_ns.load() == 0) {
      ranks.push_back(worker.rank);
    }
  }
  return ranks;
}

}  // namespace lockstep::launch
