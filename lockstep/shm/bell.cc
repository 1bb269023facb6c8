#include "lockstep/shm/bell.h"

#include "lockstep/shm/futex.h"

namespace lockstep::shm {

void Bell::ring() {
  // Ordered with the sleeper, who counts itself before the kernel compares.
  rings_.fetch_add(1);
  if (sleepers_.load() > 0) futex_wake(rings_);
}

void Bell::wait(uint32_t seen, int timeout_ms) {
  sleepers_.fetch_add(1);
  futex_wait(rings_, seen, timeout_ms);
  sleepers_.fetch_sub(1);
}

}  // namespace lockstep::shm
