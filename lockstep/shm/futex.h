#pragma once

#include <atomic>
#include <cstdint>

namespace lockstep::shm {

/// Sleeps while `word` is `value`, for at most `timeout_ms`. May return early.
/// Works between processes that map the same memory.
void futex_wait(const std::atomic<uint32_t>& word, uint32_t value,
                int timeout_ms);
/// Wakes all threads that sleep on `word`.
void futex_wake(const std::atomic<uint32_t>& word);

/// Tells the core that it is in a loop that waits for another core.
inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");
#endif
}

}  // namespace lockstep::shm
