#include "lockstep/shm/event_count.h"

#include "lockstep/shm/futex.h"

namespace lockstep::shm {

void EventCount::advance() {
  // Both operations are sequentially consistent, as are those of wait(). Either
  // this thread sees the sleeper, or the kernel sees the new count and does not
  // let it sleep.
  count_.fetch_add(1);
  if (sleepers_.load() > 0) futex_wake(count_);
}

void EventCount::wait(uint32_t seen, int timeout_ms) {
  sleepers_.fetch_add(1);
  futex_wait(count_, seen, timeout_ms);
  sleepers_.fetch_sub(1);
}

void EventCount::wake() const { futex_wake(count_); }

}  // namespace lockstep::shm
