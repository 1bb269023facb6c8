#pragma once

#include <functional>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/stopwatch.h"

namespace lockstep::launch {

/// How an agent waits for others: called often, may throw.
using CheckStop = std::function<void()>;

/// Of an agent that waits for others, `limit_s` in all.
class Deadline {
 public:
  static constexpr int kPollMs = 50;

  Deadline(double limit_s, const CheckStop& check_stop)
      : limit_s_(limit_s), check_stop_(check_stop) {}

  /// Sleeps for kPollMs. Throws LaunchError with the problem once it is over;
  /// problem.got is what came so far, "" for nothing.
  void pause_or_throw(Problem problem) const;

 private:
  const double limit_s_;
  const CheckStop& check_stop_;
  const Stopwatch watch_;
};

}  // namespace lockstep::launch
