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

/// A counter in zeroed shared memory. Ranks sleep until it advances. It wraps
/// around, so counts are compared by their difference.
///
/// A waiter reads count(), checks its condition, and sleeps if the condition is
/// not met. An advance() in between ends the sleep at once.
class EventCount {
 public:
  /// Adds one and wakes the sleepers. Threads that see the new count also see
  /// everything that was written before.
  void advance();
  uint32_t count() const { return count_.load(std::memory_order_acquire); }
  /// Returns whether the count is at least `target`.
  bool has_reached(uint32_t target) const {
    return static_cast<int32_t>(count() - target) >= 0;
  }
  /// Sleeps until the count is not `seen`, for at most `timeout_ms`. May return
  /// early.
  void wait(uint32_t seen, int timeout_ms);
  /// Wakes the sleepers without changing the count.
  void wake() const;

 private:
  std::atomic<uint32_t> count_;
  std::atomic<uint32_t> sleepers_;
};

}  // namespace lockstep::shm
