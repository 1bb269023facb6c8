#pragma once

#include <atomic>
#include <cstdint>

namespace lockstep::shm {

/// A number that only grows, and that ranks sleep on until it does. Lies in
/// zeroed shared memory. It wraps around: counts are compared by their
/// difference.
///
/// A sleeper takes count(), looks for what it waits for, and sleeps if that is
/// not there: an advance() in between ends the sleep at once.
class EventCount {
 public:
  /// Adds one, and wakes those that sleep. What was written before it is seen
  /// by whoever sees the new count.
  void advance();
  uint32_t count() const { return count_.load(std::memory_order_acquire); }
  /// Whether `target` advances, or more, have been made.
  bool has_reached(uint32_t target) const {
    return static_cast<int32_t>(count() - target) >= 0;
  }
  /// Sleeps until the count is not `seen`, for `timeout_ms` at most; may return
  /// early.
  void wait(uint32_t seen, int timeout_ms);
  /// Wakes those that sleep, who find the count as it was.
  void wake() const;

 private:
  std::atomic<uint32_t> count_;
  std::atomic<uint32_t> sleepers_;
};

}  // namespace lockstep::shm
