#include "lockstep/control/worker_side.h"

#include <chrono>
#include <memory>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/stopwatch.h"
#include "lockstep/shm/futex.h"
#include "lockstep/transport/failure_text.h"

namespace lockstep::control {
namespace {

std::atomic<PhaseHook> phase_hook = nullptr;

std::unique_ptr<const ControlBlock> open_block() {
  const auto text = env(kAgentVariable);
  if (!text) return nullptr;
  try {
    return std::make_unique<const ControlBlock>(ControlBlock::open(*text));
  } catch (const Error& error) {
    log_debug("comm", text_of(error));
    return nullptr;
  }
}

// Returns this worker's slot, or null without an agent. It is never destroyed,
// because threads may still count when the process ends.
WorkerSlot* own_slot() {
  static WorkerSlot* const slot =
      control_block() != nullptr
          ? &control_block()->slot(control_block()->own_slot())
          : nullptr;
  return slot;
}

void beat(WorkerSlot& slot) noexcept {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  slot.heartbeat_ns.store(static_cast<uint64_t>(now.count()),
                          std::memory_order_relaxed);
}

}  // namespace

const ControlBlock* control_block() {
  static const ControlBlock* const opened = open_block().release();
  return opened;
}

void enter(Phase phase) {
  WorkerSlot* const slot = own_slot();
  if (slot != nullptr) {
    slot->phase.store(phase, std::memory_order_relaxed);
    beat(*slot);
  }
  if (const PhaseHook hook = phase_hook.load(std::memory_order_relaxed)) {
    hook(phase, slot != nullptr ? slot->steps.load() : 0);
  }
}

void begin_steps(uint64_t steps) noexcept {
  if (own_slot() != nullptr) own_slot()->first_steps.store(steps);
  count_steps(steps);
}

void count_steps(uint64_t steps) noexcept {
  WorkerSlot* const slot = own_slot();
  if (slot == nullptr) return;
  slot->steps.store(steps, std::memory_order_relaxed);
  beat(*slot);
}

void count_collective() noexcept {
  WorkerSlot* const slot = own_slot();
  if (slot == nullptr) return;
  slot->collectives.fetch_add(1, std::memory_order_relaxed);
  beat(*slot);
}

void set_phase_hook(PhaseHook hook) { phase_hook = hook; }

bool may_wait() {
  return control_block() != nullptr &&
         control_block()->header().may_wait.load() != 0;
}

PromiseToWait::PromiseToWait() noexcept {
  if (own_slot() != nullptr) own_slot()->can_wait = 1;
}

PromiseToWait::~PromiseToWait() {
  if (own_slot() != nullptr) own_slot()->can_wait = 0;
}

bool is_attempt_over() {
  return own_slot() != nullptr &&
         control_block()->header().over.load() >= own_slot()->attempt.load();
}

bool is_regroup_wanted() {
  return own_slot() != nullptr &&
         control_block()->header().regroup.load() >= own_slot()->attempt.load();
}

std::optional<RankAssignment> wait_for_next(const std::string& why,
                                            const std::function<bool()>& stop) {
  if (!may_wait()) return std::nullopt;
  constexpr int kPollForGroupEveryMs = 100;
  WorkerSlot& slot = *own_slot();
  const uint32_t attempt = slot.attempt.load();
  slot.reason.fill(0);
  transport::set_text(slot.reason, why);
  enter(Phase::kWait);
  slot.waits_after.store(attempt);
  const Stopwatch waited;
  while (slot.attempt.load() == attempt) {
    const bool is_in_vain =
        control_block()->header().is_closed.load() != 0 ||
        waited.seconds() > control_block()->header().wait_limit_s.load() ||
        (stop && stop());
    if (is_in_vain) {
      slot.waits_after.store(0);
      return std::nullopt;
    }
    shm::futex_wait(slot.attempt, attempt, kPollForGroupEveryMs);
  }
  slot.waits_after.store(0);
  enter(Phase::kStart);
  return slot.assignment;
}

}  // namespace lockstep::control
