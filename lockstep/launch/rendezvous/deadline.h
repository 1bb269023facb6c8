#pragma once

#include <functional>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/stopwatch.h"

namespace lockstep::launch {

/// A function that is called often while an agent waits for others. It may
/// throw to stop the wait.
using CheckStop = std::function<void()>;

/// The deadline of an agent that waits for others, `limit_s` seconds after its
/// construction.
class Deadline {
 public:
  static constexpr int kPollMs = 50;

  Deadline(double limit_s, const CheckStop& check_stop)
      : limit_s_(limit_s), check_stop_(check_stop) {}

  /// Sleeps for kPollMs. After the deadline, throws LaunchError with `problem`,
  /// whose `got` says what has arrived so far ("": nothing).
  void pause_or_throw(Problem problem) const;

 private:
  const double limit_s_;
  const CheckStop& check_stop_;
  const Stopwatch watch_;
};

}  // namespace lockstep::launch
