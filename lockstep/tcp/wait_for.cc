#include "lockstep/tcp/wait_for.h"

#include <algorithm>
#include <cstdint>
#include <poll.h>

namespace lockstep::tcp {

bool wait_for(int fd, short events,
              std::chrono::steady_clock::time_point deadline,
              const std::function<bool()>& is_over) {
  for (;;) {
    const auto left = std::min(std::chrono::ceil<std::chrono::milliseconds>(
                                   deadline - std::chrono::steady_clock::now()),
                               kAskEvery);
    pollfd polled{.fd = fd, .events = events, .revents = 0};
    const int64_t wait_ms = std::max<int64_t>(left.count(), 0);
    if (::poll(&polled, 1, static_cast<int>(wait_ms)) > 0) return true;
    if (std::chrono::steady_clock::now() >= deadline || is_over()) return false;
  }
}

}  // namespace lockstep::tcp
