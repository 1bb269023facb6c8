#include "lockstep/cli/start/checks.h"

#include <charconv>
#include <cmath>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/text.h"

namespace lockstep::cli {
namespace {

template <class T>
bool parse(const std::string& text, T& value) {
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && rest == end;
}

std::string refuse(const std::string& expected, const std::string& got) {
  return fmt::format("expected {}, got '{}'", expected, got);
}

}  // namespace

CLI::Validator whole_number(int64_t least, int64_t most) {
  const bool is_open = most == std::numeric_limits<int64_t>::max();
  const std::string expected =
      is_open ? fmt::format("a whole number of at least {}", least)
              : fmt::format("a whole number from {} to {}", least, most);
  return CLI::Validator(
      [=](std::string& text) {
        int64_t value = 0;
        const bool fits = parse(text, value) && value >= least && value <= most;
        return fits ? std::string() : refuse(expected, text);
      },
      "");
}

CLI::Validator number(double least, Bound bound, double below) {
  std::string expected =
      fmt::format("a number {} {}",
                  bound == Bound::kIncluded ? "of at least" : "above", least);
  if (std::isfinite(below)) expected += fmt::format(" and below {}", below);
  return CLI::Validator(
      [=](std::string& text) {
        double value = 0;
        const bool fits =
            parse(text, value) && std::isfinite(value) && value < below &&
            (bound == Bound::kIncluded ? value >= least : value > least);
        return fits ? std::string() : refuse(expected, text);
      },
      "");
}

CLI::Validator one_of(std::vector<std::string> words) {
  return CLI::Validator(
      [words = std::move(words)](std::string& text) {
        for (const auto& word : words) {
          if (word == text) return std::string();
        }
        const std::string near = nearest(text, words);
        return refuse(fmt::format("one of {}", fmt::join(words, ", ")), text) +
               (near.empty() ? "" : "; did you mean '" + near + "'?");
      },
      "");
}

}  // namespace lockstep::cli
