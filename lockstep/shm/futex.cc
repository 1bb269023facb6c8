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

}  // namespace lockstep::shm
