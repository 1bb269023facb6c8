#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace lockstep {

/// Waits until `is_true()` returns true, like `changed.wait(lock, is_true)`.
///
/// That function needs a symbol that is new in gcc 12's library. The wheel for
/// Python also runs with the library of gcc 11 (manylinux_2_34).
template <class Condition>
void wait_until(std::condition_variable& changed,
                std::unique_lock<std::mutex>& lock, Condition is_true) {
  while (!changed.wait_for(lock, std::chrono::hours(1), is_true)) {
  }
}

}  // namespace lockstep
