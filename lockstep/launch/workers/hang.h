#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/launch/workers/worker_team.h"

namespace lockstep::launch {

struct Hung {
  size_t index = 0;  ///< in WorkerTeam::workers()
  std::string how;   ///< "hung for 60 s in backward after 12 steps (...)"
  /// Stack of each thread: from eu-stack (elfutils) if it is installed, else
  /// the information in /proc.
  std::string stacks;
};

/// Returns the worker that the others wait for, if no worker has made progress
/// for `timeout_s`. That is a worker that is stopped, or else the one that has
/// done the fewest steps and begun the fewest collectives. If all have the same
/// progress and are in a collective, it is the first one, but only after three
/// times `timeout_s`, because they may wait for a worker of another node, or
/// the connection between them may be broken. Returns nullopt if a worker does
/// not report its steps. Collecting the stacks takes up to 10 s.
std::optional<Hung> hung_worker(const WorkerTeam& team, double timeout_s);

/// Returns the ranks that run and have not reported anything yet.
std::vector<int> silent_ranks(const WorkerTeam& team);

}  // namespace lockstep::launch
