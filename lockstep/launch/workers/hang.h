#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "lockstep/launch/workers/worker_team.h"

namespace lockstep::launch {

struct Hung {
  size_t index = 0;  ///< of the worker in its team
  std::string how;   ///< "hung for 60 s in backward after 12 steps (...)"
  /// Where each of its threads is: by eu-stack (elfutils) if it is installed,
  /// else what /proc knows of them.
  std::string stacks;
};

/// The worker that the others wait for, if all of them stand still for
/// `timeout_s`: it is stopped, or has done the fewest steps and begun the
/// fewest collectives. If all are equally far and in a collective, the first,
/// but only after three times as long: they may wait for a worker of another
/// node, or something between them is broken. Nothing while one does not tell
/// its steps. Takes up to 10 s, for the stacks.
std::optional<Hung> hung_worker(const WorkerTeam& team, double timeout_s);

}  // namespace lockstep::launch
