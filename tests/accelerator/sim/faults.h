#pragma once

#include <memory>

#include "tests/accelerator/sim/accelerator.h"

namespace lockstep::sim {

/// Returns the faults that hold for what is enqueued now.
std::shared_ptr<const Faults> current_faults();
/// Counts an allocation. Returns whether it is the one to fail.
bool take_failing_allocation();
/// Counts a kernel. Returns whether it is the one to fail.
bool take_failing_kernel();

}  // namespace lockstep::sim
