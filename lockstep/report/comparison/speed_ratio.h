#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

// How sure it is that one run is faster than another.
// docs/decisions/0032-verdicts-with-intervals.md says why it is done so.
namespace lockstep::report {

/// How often a verdict may be wrong: one in twenty.
inline constexpr double kVerdictError = 0.05;

struct Interval {
  double low = 0;
  double high = 0;
};

/// How many times as fast one run is as another.
struct SpeedRatio {
  double times = 0;
  /// Where the ratio lies with the confidence asked for. None: there were not
  /// two rounds, so nothing says how much it would change by chance.
  std::optional<Interval> interval;

  /// Whether the interval says which of the two is faster.
  bool is_clear() const {
    return interval && (interval->low > 1 || interval->high < 1);
  }
};

/// Of `ours_s` and `theirs_s`, the step times of the same rounds, theirs over
/// ours within each round: what slows a whole round down slows both. `times` is
/// the geometric mean of the rounds' ratios, the interval Student's t interval
/// of the mean of their logarithms (Georges, Buytaert and Eeckhout,
/// "Statistically Rigorous Java Performance Evaluation", OOPSLA 2007, section
/// 3.2.1, on logarithms, because ratios multiply). `confidence`: 0.95 for 95 %.
SpeedRatio speed_ratio(std::span<const double> ours_s,
                       std::span<const double> theirs_s, double confidence);

/// After how many rounds verdicts are looked at, if there are `least` to `most`
/// of them: half as many again each time, to `most`. 3 to 10: 3, 5, 8, 10.
std::vector<int64_t> look_rounds(int64_t least, int64_t most);

/// The confidence that an interval needs at each of so many looks for the
/// verdict to be wrong at most once in twenty comparisons, whichever look ends
/// them: a difference that is not there has several chances to show. By
/// Bonferroni's inequality the looks share kVerdictError.
double confidence_of_look(size_t looks);

/// "1.12x (1.08-1.17)"; "~1.02x (0.97-1.06)" where it may be 1; "1.12x" without
/// an interval. An interval without 1 has enough digits to show that.
std::string cell_text(const SpeedRatio& ratio);
/// "1.12 times as fast (1.08 to 1.17)", "1.12 times as fast".
std::string times_text(const SpeedRatio& ratio);
/// "1.08 to 1.17"; empty without an interval.
std::string interval_text(const SpeedRatio& ratio);

}  // namespace lockstep::report
