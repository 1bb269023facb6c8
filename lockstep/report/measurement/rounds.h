#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/report/comparison/comparison.h"

namespace lockstep::report {

/// One strategy of one engine, before it is measured.
struct Contender {
  std::string engine;
  std::string strategy;

  /// As ComparedRun::label().
  std::string label() const;
};

/// How many rounds there are: `least`, and more while a verdict is open.
struct RoundLimits {
  int64_t least = 3;
  int64_t most = 10;
};

/// Runs contender number `contender` once. Rounds are counted from 1; round 0
/// is not counted.
using MeasureRound =
    std::function<Measurement(size_t contender, int64_t round)>;

/// Told why there are more rounds: "after 3 rounds it is open whether dp or
/// single is faster (0.97 to 1.06 times): 2 more rounds".
using GoesOn = std::function<void(const std::string& why)>;

/// Measures in rounds, in which every contender runs once, until it is clear of
/// each two that are compared which one is faster, or there are `limits.most`
/// rounds. It is looked at after look_rounds() rounds. Each round begins with
/// another contender (A B C, B C A, C A B), so that none gains by its place.
/// Before the rounds the first contender runs once and is not counted, as a
/// machine that had nothing to do is slower at first; unless there is but one
/// round. The result is relate()d.
Comparison measure_rounds(const std::vector<Contender>& contenders,
                          const RoundLimits& limits,
                          const MeasureRound& measure, const GoesOn& goes_on);

}  // namespace lockstep::report
