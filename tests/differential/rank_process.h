#pragma once

#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "tests/differential/case.h"
#include "tests/differential/trace.h"

namespace lockstep::differential {

/// Result of a rank.
struct RankRun {
  std::string name;
  Trace trace;
};

/// Trains the module of a case as a rank of `world`.
Trace play_on_rank(const Case& of, const ProcessGroup& world);

/// The same on each rank, which is a process that is forked from this one. This
/// process must not have threads yet, because they would not survive the fork.
std::vector<RankRun> run_in_processes(const Case& of);

}  // namespace lockstep::differential
