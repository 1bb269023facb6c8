#pragma once

#include <optional>
#include <string>

#include "lockstep/launch/failure/clock.h"
#include "lockstep/launch/output/worker_stream.h"
#include "lockstep/launch/workers/worker_process.h"

namespace lockstep::launch {

/// One of the agent's workers.
struct Worker {
  int rank = 0;
  int local_rank = 0;
  WorkerStream out;
  WorkerStream err;
  WorkerProcess process;
  std::string folder;  ///< of its log files
  WorkerEnd end{};
  std::optional<Moment> ended_at{};  ///< when its end was seen

  bool waits = false;     ///< for the next attempt
  std::string verdict{};  ///< why we ended it, if it hung
  std::string stacks{};   ///< where its threads were then

  bool has_failed() const {
    return ended_at && (end.signal != 0 || end.exit_code != 0);
  }
};

}  // namespace lockstep::launch
