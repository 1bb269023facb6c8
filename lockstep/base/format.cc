#include "lockstep/base/format.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

namespace lockstep {
namespace {

/// Formats three significant digits without an exponent: 1.23, 12.3, 123.
std::string three_digits(double value) {
  const double size = std::abs(value);
  const int decimals = size < 9.995 ? 2 : size < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f}", value, decimals);
}

}  // namespace

std::string format_bytes(double bytes) {
  constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  size_t unit = 0;
  // 1023.95 would print as 1024.0.
  while (std::abs(bytes) >= (unit == 0 ? 1023.5 : 1023.95) &&
         unit + 1 < kUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} B", bytes)
                   : fmt::format("{:.1f} {}", bytes, kUnits[unit]);
}

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds)) return "?";
  if (seconds < 0) return fmt::format("-{}", format_duration(-seconds));
  if (seconds == 0) return "0 s";
  if (seconds < 999.5e-9) return three_digits(seconds * 1e9) + " ns";
  if (seconds < 999.5e-6) return three_digits(seconds * 1e6) + " us";
  if (seconds < 0.9995) return three_digits(seconds * 1e3) + " ms";
  if (seconds < 59.95) return three_digits(seconds) + " s";
  // Longer durations would overflow.
  constexpr double kMax = 1e12;
  const auto whole = static_cast<long long>(std::min(seconds, kMax) + 0.5);
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  if (whole < 86400) {
    return fmt::format("{} h {} min", whole / 3600, whole % 3600 / 60);
  }
  return fmt::format("{} d {} h", whole / 86400, whole % 86400 / 3600);
}

std::string format_durations(double low_s, double high_s) {
  const std::string low = format_duration(low_s);
  const std::string high = format_duration(high_s);
  // "2 min 5 s" has two units, so it is not shortened.
  const auto unit_of = [](const std::string& text) {
    const size_t space = text.find(' ');
    return space == text.rfind(' ') ? text.substr(space) : std::string();
  };
  const std::string unit = unit_of(low);
  return unit.empty() || unit != unit_of(high)
             ? low + " - " + high
             : low.substr(0, low.size() - unit.size()) + "-" + high;
}

std::string format_count(long long count) {
  const std::string digits = fmt::format("{}", count);
  const size_t first = count < 0 ? 1 : 0;
  std::string text;
  for (size_t at = 0; at < digits.size(); ++at) {
    const bool begins_group = (digits.size() - at) % 3 == 0;
    if (begins_group && at > first) text.push_back(',');
    text.push_back(digits[at]);
  }
  return text;
}

std::string counted(long long count, std::string_view thing) {
  return counted(count, thing, fmt::format("{}s", thing));
}

std::string counted(long long count, std::string_view thing,
                    std::string_view things) {
  return fmt::format("{} {}", format_count(count), count == 1 ? thing : things);
}

std::string format_number(double value) {
  constexpr double kLargest = 1e6;
  constexpr double kSmallest = 9.5e-5;  // 0.0001
  const double size = std::abs(value);
  const bool is_plain = size < kLargest && (size >= kSmallest || size == 0);
  return is_plain || !std::isfinite(value) ? fmt::format("{:.4f}", value)
                                           : fmt::format("{:.3e}", value);
}

}  // namespace lockstep
