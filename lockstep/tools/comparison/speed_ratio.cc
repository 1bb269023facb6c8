#include "lockstep/tools/comparison/speed_ratio.h"

#include <algorithm>
#include <boost/math/distributions/students_t.hpp>
#include <cmath>

#include <fmt/format.h>

namespace lockstep::tools {
namespace {

// A mean and half the width of its t interval, which is not set for one value.
struct Estimate {
  double mean = 0;
  std::optional<double> half_width;
};

Estimate estimate(const std::vector<double>& values, double confidence) {
  const auto count = static_cast<double>(values.size());
  Estimate result;
  for (const double value : values) result.mean += value / count;
  if (values.size() < 2) return result;
  double squares = 0;
  for (const double value : values) {
    squares += (value - result.mean) * (value - result.mean);
  }
  const double standard_error = std::sqrt(squares / (count - 1) / count);
  const boost::math::students_t distribution(count - 1);
  result.half_width =
      standard_error *
      boost::math::quantile(distribution, 1 - (1 - confidence) / 2);
  return result;
}

// Returns two, or as many more digits as needed to show that the interval
// excludes 1.
int digits_of(const SpeedRatio& ratio) {
  constexpr int kMax = 5;
  int digits = 2;
  if (!ratio.is_clear()) return digits;
  const double nearest =
      ratio.interval->low > 1 ? ratio.interval->low : ratio.interval->high;
  while (digits < kMax &&
         std::round(nearest * std::pow(10, digits)) == std::pow(10, digits)) {
    ++digits;
  }
  return digits;
}

std::string ends_text(const SpeedRatio& ratio, const char* between) {
  if (!ratio.interval) return "";
  const int digits = digits_of(ratio);
  return fmt::format("{:.{}f}{}{:.{}f}", ratio.interval->low, digits, between,
                     ratio.interval->high, digits);
}

std::string in_brackets(const std::string& text) {
  return text.empty() ? text : " (" + text + ")";
}

}  // namespace

SpeedRatio speed_ratio(std::span<const double> ours_s,
                       std::span<const double> theirs_s, double confidence) {
  std::vector<double> logarithms;
  for (size_t round = 0; round < std::min(ours_s.size(), theirs_s.size());
       ++round) {
    if (ours_s[round] <= 0 || theirs_s[round] <= 0) return {};
    logarithms.push_back(std::log(theirs_s[round] / ours_s[round]));
  }
  if (logarithms.empty()) return {};
  const Estimate estimated = estimate(logarithms, confidence);
  SpeedRatio ratio{.times = std::exp(estimated.mean), .interval = {}};
  if (estimated.half_width) {
    ratio.interval = {.low = std::exp(estimated.mean - *estimated.half_width),
                      .high = std::exp(estimated.mean + *estimated.half_width)};
  }
  return ratio;
}

std::vector<int64_t> verdict_rounds(int64_t least, int64_t most) {
  std::vector<int64_t> rounds;
  for (int64_t next = least; next < most; next += (next + 1) / 2) {
    rounds.push_back(next);
  }
  rounds.push_back(most);
  return rounds;
}

double confidence_of_verdict(size_t verdicts) {
  return 1 - kVerdictError / static_cast<double>(std::max<size_t>(verdicts, 1));
}

std::string cell_text(const SpeedRatio& ratio) {
  const bool may_be_level = ratio.interval && !ratio.is_clear();
  return fmt::format("{}{:.{}f}x{}", may_be_level ? "~" : "", ratio.times,
                     digits_of(ratio), in_brackets(ends_text(ratio, "-")));
}

std::string times_text(const SpeedRatio& ratio) {
  return fmt::format("{:.{}f} times as fast{}", ratio.times, digits_of(ratio),
                     in_brackets(interval_text(ratio)));
}

std::string interval_text(const SpeedRatio& ratio) {
  return ends_text(ratio, " to ");
}

}  // namespace lockstep::tools
