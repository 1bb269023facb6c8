#pragma once

#include <atomic>
#include <cstdint>

namespace lockstep::shm {

/// What a rank sleeps on until another rank, or a thread of its own, has
/// something for it. Lies in zeroed shared memory.
///
/// The sleeper takes rings(), looks for work, and if there is none sleeps: a
/// ring in between ends the sleep at once.
class Bell {
 public:
  void ring();
  uint32_t rings() const { return rings_.load(); }
  /// Returns when it has rung since `seen`, or after `timeout_ms`.
  void wait(uint32_t seen, int timeout_ms);

 private:
  std::atomic<uint32_t> rings_;
  std::atomic<uint32_t> sleepers_;
};

}  // namespace lockstep::shm
