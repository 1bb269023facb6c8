#include "lockstep/shm/peers.h"

#include <unistd.h>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/out_of_resources.h"

namespace lockstep::shm {

using State = P2pRankState::State;

Peers::Peers(const P2pSegment& segment, int rank)
    : segment_(segment),
      rank_(rank),
      processes_(static_cast<size_t>(segment.ranks())),
      ends_(static_cast<size_t>(segment.ranks())) {}

void Peers::look_at_lines() {
  for (int other = 0; other < segment_.ranks(); ++other) {
    auto& end = ends_[static_cast<size_t>(other)];
    if (other == rank_ || end) continue;
    const P2pRankState& line = segment_.line(other);
    const State state = line.state.load();
    if (state == State::kLeft) {
      end = name(other) + " left the group";
    } else if (state == State::kFailed) {
      const FailureText text = line.failure;
      end = fmt::format("{} failed: {}", name(other), text_of(text));
    }
  }
}

void Peers::look_at_processes() {
  for (int other = 0; other < segment_.ranks(); ++other) {
    auto& end = ends_[static_cast<size_t>(other)];
    const P2pRankState& line = segment_.line(other);
    if (other == rank_ || end || line.state.load() < State::kHere) continue;
    PeerProcess& process = processes_[static_cast<size_t>(other)];
    const pid_t pid = line.pid.load();
    if (process.pid() == 0) {
      if (pid == ::getpid()) continue;
      try {
        process = PeerProcess(pid, line.start_time.load());
      } catch (const CommError&) {
        end = name(other) + " ended";
      } catch (const OutOfResources&) {
        continue;  // its state is not known; the next look may succeed
      }
    }
    if (!process.has_ended()) continue;
    // It may have left or failed since its line was read.
    look_at_lines();
    if (!end) end = name(other) + " ended";
  }
}

const std::optional<std::string>& Peers::end_of(int rank) const {
  return ends_[static_cast<size_t>(rank)];
}

std::string Peers::state_of(int rank) const {
  const State state = segment_.line(rank).state.load();
  if (state < State::kHere) return fmt::format("rank {} never joined", rank);
  const PeerProcess& process = processes_[static_cast<size_t>(rank)];
  return fmt::format(
      "{} {}", name(rank),
      process.pid() == 0 ? "runs in another process" : process.state());
}

std::string Peers::name(int rank) const {
  return fmt::format("rank {} ({})", rank, segment_.process_name(rank));
}

}  // namespace lockstep::shm
