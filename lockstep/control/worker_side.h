#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "lockstep/control/control_block.h"

// A worker's side of the control block. Without an agent of `lockstep run` all
// of these functions do nothing.
namespace lockstep::control {

/// Returns the block of the agent that started this process. Returns null if no
/// agent did, or if its memory can't be reached (another user, another process
/// namespace).
const ControlBlock* control_block();

/// Reports the phase that this rank enters.
void enter(Phase phase);
/// Reports that this worker begins, and that `steps` steps were done before.
void begin_steps(uint64_t steps) noexcept;
/// Reports that `steps` steps are done.
void count_steps(uint64_t steps) noexcept;
/// Reports that one more collective has begun. The other ranks wait for the
/// rank that has begun the fewest.
void count_collective() noexcept;

/// A function that enter() calls with the steps done. For tests that need a
/// fault at an exact place: enter() passes on what the hook throws.
using PhaseHook = void (*)(Phase phase, uint64_t steps);
void set_phase_hook(PhaseHook hook);

/// Returns whether this rank should wait for the agent, instead of ending, when
/// another rank is lost.
bool may_wait();
/// Promises, for as long as it exists, that this rank will wait if another rank
/// is lost. The agent then does not end this rank at once.
class PromiseToWait {
 public:
  PromiseToWait() noexcept;
  ~PromiseToWait();
  PromiseToWait(const PromiseToWait&) = delete;
  PromiseToWait& operator=(const PromiseToWait&) = delete;
};
/// Returns whether the agent has given up the attempt that this process is in.
bool is_attempt_over();
/// Returns whether the agent wants the workers to wait for the next attempt
/// after their current step, because the set of nodes changes.
bool is_regroup_wanted();
/// Tells the agent why the attempt can't go on, and waits for the next attempt.
/// Returns nothing if there will be none: there is no agent, no restart is
/// left, `stop()` returned true, or the agent's wait limit has passed.
std::optional<RankAssignment> wait_for_next(const std::string& why,
                                            const std::function<bool()>& stop);

}  // namespace lockstep::control
