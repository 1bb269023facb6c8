#pragma once

#include <chrono>
#include <functional>

namespace lockstep::tcp {

/// How often a wait asks whether it is over.
inline constexpr std::chrono::milliseconds kAskEvery{500};

/// Waits for `events` (POLLIN, POLLOUT) at socket `fd`, or for its error. False
/// if nothing came before the deadline, or if `is_over`, which is asked now and
/// then, says to give up.
bool wait_for(int fd, short events,
              std::chrono::steady_clock::time_point deadline,
              const std::function<bool()>& is_over);

}  // namespace lockstep::tcp
