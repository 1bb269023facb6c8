#include "lockstep/launch/workers/hang.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/shm/peer_process.h"

namespace lockstep::launch {
namespace {

using Progress = std::pair<uint64_t, uint64_t>;

double seconds_since(uint64_t beat_ns) {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  const auto then = std::chrono::nanoseconds(beat_ns);
  return std::chrono::duration<double>(now - then).count();
}

// Where a rank may wait for others.
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

}  // namespace

std::optional<Hung> hung_worker(const WorkerTeam& team, double timeout_s) {
  double idle_s = std::numeric_limits<double>::infinity();
  Progress least(UINT64_MAX, UINT64_MAX);
  Progress most(0, 0);
  size_t slowest = 0;
  for (size_t i = 0; i < team.workers().size(); ++i) {
    const Worker& worker = team.workers()[i];
    const control::WorkerSlot& slot = team.slot_of(worker);
    const uint64_t beat_ns = slot.beat_ns.load();
    const bool tells =
        beat_ns != 0 && slot.phase.load() != control::Phase::kEnd;
    if (!worker.process.is_running() || worker.waits ||
        !worker.verdict.empty() || !tells) {
      return std::nullopt;
    }
    idle_s = std::min(idle_s, seconds_since(beat_ns));
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
  return Hung{slowest,
              fmt::format("hung for {:.0f} s in {} after {} steps (the process "
                          "{})",
                          idle_s, control::name_of(slot.phase.load()),
                          slot.steps.load(), state_of(worker))};
}

}  // namespace lockstep::launch
