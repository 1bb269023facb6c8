#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "lockstep/comm/agent/page.h"

// A worker's side of the page. Without an agent of `lockstep run` all of it
// does nothing.
namespace lockstep::agent {

/// The page of the agent that started this process; null if none did, or if
/// its memory can't be reached (another user, another process namespace).
const Page* page();

/// Says what this rank is at from now on.
void enter(Phase phase);
/// Says that so many steps are done already, and the others begin.
void begin_steps(uint64_t steps) noexcept;
/// Says that so many steps are done.
void count_steps(uint64_t steps) noexcept;
/// Says that one more collective has begun: who began the fewest is the one
/// that the others wait for.
void count_collective() noexcept;

/// Called by enter(), with the steps done: for tests, that want a fault at an
/// exact place. What it throws comes out of enter().
using PhaseHook = void (*)(Phase phase, uint64_t steps);
void set_phase_hook(PhaseHook hook);

/// Whether this rank, if it loses another, should wait for the agent instead
/// of ending.
bool may_wait();
/// While it lives, this rank promises to do so: the agent will not end it at
/// once.
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
/// step that they are in: nodes come or go.
bool is_regroup_wanted();
/// Tells the agent why the attempt can't go on, and waits for the next one.
/// Nothing if there is none: no agent, no restarts left, `stop()`, or no word
/// for as long as the agent said that it may take.
std::optional<Place> wait_for_next(const std::string& why,
                                   const std::function<bool()>& stop);

}  // namespace lockstep::agent
