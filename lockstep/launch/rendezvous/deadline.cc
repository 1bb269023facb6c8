#include "lockstep/launch/rendezvous/deadline.h"

#include <poll.h>

#include <fmt/format.h>

namespace lockstep::launch {

void Deadline::pause_or_throw(Problem problem) const {
  check_stop_();
  if (watch_.seconds() > limit_s_) {
    problem.got =
        fmt::format("{} after {:g} s (--rdzv-conf join_timeout=...)",
                    problem.got.empty() ? "none" : problem.got, limit_s_);
    throw LaunchError(problem);
  }
  ::poll(nullptr, 0, kPollMs);
}

}  // namespace lockstep::launch
