#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "lockstep/control/control_block.h"

// A worker's side of the control block. Without an agent of `lockstep run` all
// of these functions do nothing.
namespace lockstep::control {

/// The block of the agent that started this process; null if none did, or if
/// its memory can't be reached (another user, another process namespace).
const ControlBlock* control_block();

/// Says what this rank is doing from now on.
void enter(Phase phase);
/// Says that `steps` steps were done before, and that this worker begins.
void begin_steps(uint64_t steps) noexcept;
/// Says that `steps` steps are done.
void count_steps(uint64_t steps) noexcept;
/// Says that one more collective has begun. The rank that began the fewest is
/// the one that the others wait for.
void count_collective() noexcept;

/// enter() calls it with the steps done. For tests that need a fault at an
/// exact place: what the hook throws comes out of enter().
using PhaseHook = void (*)(Phase phase, uint64_t steps);
void set_phase_hook(PhaseHook hook);

/// Whether this rank, if it loses another, should wait for the agent instead
/// of ending.
bool may_wait();
/// While it lives, this rank promises to wait if another is lost, so the agent
/// will not end it at once.
class PromiseToWait {
 public:
  PromiseToWait() noexcept;
  ~PromiseToWait();
  PromiseToWait(const PromiseToWait&) = delete;
  PromiseToWait& operator=(const PromiseToWait&) = delete;
};
/// Whether the agent has given up the attempt that this process is in.
bool is_attempt_over();
/// Whether the agent wants the workers to wait for the next attempt after the
/// step that they are in, because nodes come or go.
bool is_regroup_wanted();
/// Tells the agent why the attempt can't go on, and waits for the next attempt.
/// Returns nothing if none will come: there is no agent, no restart is left,
/// `stop()` returned true, or the agent's wait limit has passed.
std::optional<RankAssignment> wait_for_next(const std::string& why,
                                            const std::function<bool()>& stop);

}  // namespace lockstep::control
