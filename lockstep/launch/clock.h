#pragma once

#include <chrono>

namespace lockstep::launch {

/// Seconds since 1970: to be compared with what other programs wrote.
inline double unix_time_s() {
  return std::chrono::duration<double>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace lockstep::launch
