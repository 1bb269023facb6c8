#include "lockstep/comm/agent/link.h"

#include <chrono>
#include <memory>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/stopwatch.h"
#include "lockstep/comm/shm/fixed_text.h"
#include "lockstep/comm/shm/futex.h"

namespace lockstep::agent {
namespace {

std::atomic<PhaseHook> phase_hook = nullptr;

std::unique_ptr<const Page> open_page() {
  const auto text = env(kAgentVariable);
  if (!text) return nullptr;
  try {
    return std::make_unique<const Page>(Page::open(*text));
  } catch (const Error& error) {
    log_debug("comm", error.what());
    return nullptr;
  }
}

// Never destroyed: threads may still count when the process ends.
WorkerLine* line() {
  static WorkerLine* const own =
      page() != nullptr ? &page()->line(page()->own_line()) : nullptr;
  return own;
}

void beat(WorkerLine& own) noexcept {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  own.beat_ns.store(static_cast<uint64_t>(now.count()),
                    std::memory_order_relaxed);
}

}  // namespace

const Page* page() {
  static const Page* const opened = open_page().release();
  return opened;
}

void enter(Phase phase) {
  WorkerLine* const own = line();
  if (own != nullptr) {
    own->phase.store(phase, std::memory_order_relaxed);
    beat(*own);
  }
  if (const PhaseHook hook = phase_hook.load(std::memory_order_relaxed)) {
    hook(phase, own != nullptr ? own->steps.load() : 0);
  }
}

void begin_steps(uint64_t steps) noexcept {
  if (line() != nullptr) line()->first_steps.store(steps);
  count_steps(steps);
}

void count_steps(uint64_t steps) noexcept {
  WorkerLine* const own = line();
  if (own == nullptr) return;
  own->steps.store(steps, std::memory_order_relaxed);
  beat(*own);
}

void count_collective() noexcept {
  WorkerLine* const own = line();
  if (own == nullptr) return;
  own->collectives.fetch_add(1, std::memory_order_relaxed);
  beat(*own);
}

void set_phase_hook(PhaseHook hook) { phase_hook = hook; }

bool may_wait() {
  return page() != nullptr && page()->header().may_wait.load() != 0;
}

PromiseToWait::PromiseToWait() noexcept {
  if (line() != nullptr) line()->can_wait = 1;
}

PromiseToWait::~PromiseToWait() {
  if (line() != nullptr) line()->can_wait = 0;
}

bool is_attempt_over() {
  return line() != nullptr &&
         page()->header().over.load() >= line()->attempt.load();
}

bool is_regroup_wanted() {
  return line() != nullptr &&
         page()->header().regroup.load() >= line()->attempt.load();
}

std::optional<Place> wait_for_next(const std::string& why,
                                   const std::function<bool()>& stop) {
  if (!may_wait()) return std::nullopt;
  constexpr int kLookEveryMs = 100;
  WorkerLine& own = *line();
  const uint32_t attempt = own.attempt.load();
  own.reason.fill(0);
  shm::set_text(own.reason, why);
  enter(Phase::kWait);
  own.waits_after.store(attempt);
  const Stopwatch waited;
  while (own.attempt.load() == attempt) {
    const bool is_in_vain =
        page()->header().is_closed.load() != 0 ||
        waited.seconds() > page()->header().patience_s.load() ||
        (stop && stop());
    if (is_in_vain) {
      own.waits_after.store(0);
      return std::nullopt;
    }
    shm::futex_wait(own.attempt, attempt, kLookEveryMs);
  }
  own.waits_after.store(0);
  enter(Phase::kStart);
  return own.place;
}

}  // namespace lockstep::agent
