#pragma once

#include <cstddef>
#include <functional>

#include "tests/differential/verdict.h"

namespace lockstep::differential {

/// Calls `task(i)` for i of 0, ..., count - 1 in a process of their own and
/// `report(i, verdict)` here. A crash, and a task that takes longer than
/// `deadline_s`, are findings like others; the next one is then done by a new
/// process. `report` returns whether to go on. The calling process must not
/// have used LibTorch's threads.
void run_isolated(size_t count, double deadline_s,
                  const std::function<Verdict(size_t)>& task,
                  const std::function<bool(size_t, const Verdict&)>& report);

}  // namespace lockstep::differential
