#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/tools/comparison/comparison.h"

namespace lockstep::tools {

/// One strategy of one engine that is to be measured.
struct Contender {
  std::string engine;
  std::string strategy;

  /// Returns the same text as ComparedRun::label().
  std::string label() const;
};

/// Number of rounds: `least`, and more while a verdict is open.
struct RoundLimits {
  int64_t least = 3;
  int64_t most = 10;
};

/// Runs contender number `contender` once. Rounds are counted from 1. Round 0
/// is a warm-up that is not counted.
using MeasureRound =
    std::function<Measurement(size_t contender, int64_t round)>;

/// Called with the reason for more rounds: "after 3 rounds it is open whether
/// dp or single is faster (0.97 to 1.06 times): 2 more rounds".
using GoesOn = std::function<void(const std::string& why)>;

/// Measures in rounds, each of which runs every contender once. It stops when
/// the verdict for each compared pair is clear, or after `limits.most` rounds.
/// Verdicts are checked after verdict_rounds() rounds. Each round starts with
/// another contender (A B C, B C A, C A B), so that none benefits from its
/// position. Unless there is only one round, the first contender runs once
/// before the rounds without being counted, because a machine that was idle is
/// slower at first. relate() has been called on the result.
Comparison measure_rounds(const std::vector<Contender>& contenders,
                          const RoundLimits& limits,
                          const MeasureRound& measure, const GoesOn& goes_on);

}  // namespace lockstep::tools
