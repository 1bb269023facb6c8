#pragma once

#include <cstddef>
#include <functional>

#include "tests/differential/verdict.h"

namespace lockstep::differential {

/// Limits how long the remains of a run (threads, memory that ranks shared)
/// exist.
inline constexpr size_t kTasksPerProcess = 500;

/// Calls `task(i)` for i of 0, ..., count - 1 in forked processes and
/// `report(i, verdict)` here. A crash, and a task that takes longer than
/// `deadline_s`, are findings like others; the next one is then done by a new
/// process. `report` returns whether to go on. The calling process must not
/// have used LibTorch's threads. A task that forks, as one with ranks in
/// processes does, needs a process without threads: `tasks_per_process` 1.
void run_isolated(size_t count, double deadline_s,
                  const std::function<Verdict(size_t)>& task,
                  const std::function<bool(size_t, const Verdict&)>& report,
                  size_t tasks_per_process = kTasksPerProcess);

}  // namespace lockstep::differential
