#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

// Estimates the certainty that one run is faster than another.
// docs/decisions/0032-verdicts-with-intervals.md explains the method.
namespace lockstep::tools {

/// Accepted rate of wrong verdicts: one in twenty.
inline constexpr double kVerdictError = 0.05;

struct Interval {
  double low = 0;
  double high = 0;
};

/// Speed of one run relative to another.
struct SpeedRatio {
  double times = 0;
  /// Interval that contains the ratio with the requested confidence. Not set if
  /// there were fewer than two rounds, which can't show how much the ratio
  /// varies by chance.
  std::optional<Interval> interval;

  /// Returns true if the interval shows which of the two runs is faster.
  bool is_clear() const {
    return interval && (interval->low > 1 || interval->high < 1);
  }
};

/// Returns the ratio of `theirs_s` to `ours_s`, the step times of the same
/// rounds. The ratio is computed within each round, because a disturbance of a
/// whole round slows both runs down. `times` is the geometric mean of the
/// rounds' ratios, and the interval is Student's t interval of the mean of
/// their logarithms (Georges, Buytaert and Eeckhout, "Statistically Rigorous
/// Java Performance Evaluation", OOPSLA 2007, section 3.2.1; logarithms because
/// ratios multiply). `confidence` is 0.95 for 95 %.
SpeedRatio speed_ratio(std::span<const double> ours_s,
                       std::span<const double> theirs_s, double confidence);

/// Returns the numbers of rounds after which verdicts are checked, if there are
/// `least` to `most` rounds. Each is half as large again as the one before, up
/// to `most`. 3 to 10 rounds give 3, 5, 8, 10.
std::vector<int64_t> verdict_rounds(int64_t least, int64_t most);

/// Returns the confidence that an interval needs at each of `looks` checks, so
/// that at most one comparison in twenty has a wrong verdict, whichever check
/// ends it. A difference that does not exist has several chances to appear. By
/// Bonferroni's inequality, the checks share kVerdictError.
double confidence_of_verdict(size_t verdicts);

/// Returns "1.12x (1.08-1.17)", "~1.02x (0.97-1.06)" if the ratio may be 1, or
/// "1.12x" without an interval. An interval that excludes 1 gets enough digits
/// to show that.
std::string cell_text(const SpeedRatio& ratio);
/// Returns "1.12 times as fast (1.08 to 1.17)", or "1.12 times as fast".
std::string times_text(const SpeedRatio& ratio);
/// Returns "1.08 to 1.17", or "" without an interval.
std::string interval_text(const SpeedRatio& ratio);

}  // namespace lockstep::tools
