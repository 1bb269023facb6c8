#include "lockstep/shm/futex.h"

#include <ctime>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

namespace lockstep::shm {

void futex_wait(const std::atomic<uint32_t>& word, uint32_t value,
                int timeout_ms) {
  const timespec timeout{.tv_sec = timeout_ms / 1000,
                         .tv_nsec = timeout_ms % 1000 * 1'000'000L};
  // Without FUTEX_PRIVATE_FLAG, because the waker may be another process.
  ::syscall(SYS_futex, &word, FUTEX_WAIT, value, &timeout, nullptr, 0);
}

void futex_wake(const std::atomic<uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

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
