#include "lockstep/cli/start/checks.h"

#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/numbers.h"
#include "lockstep/base/text.h"

namespace lockstep::cli {
namespace {

std::string refuse(const std::string& expected, const std::string& got) {
  return fmt::format("expected {}, got '{}'", expected, got);
}

constexpr int64_t kMaxBytes = int64_t{16} << 30;

std::optional<int64_t> parse_size(std::string_view text) {
  int64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || number < 1 || number > kMaxBytes) return {};
  const std::string_view unit(rest, static_cast<size_t>(end - rest));
  const int shift = unit.empty()                 ? 0
                    : unit == "K" || unit == "k" ? 10
                    : unit == "M" || unit == "m" ? 20
                    : unit == "G" || unit == "g" ? 30
                                                 : -1;
  if (shift < 0 || number > kMaxBytes >> shift) return {};
  return number << shift;
}

}  // namespace

CLI::Validator whole_number(int64_t least, int64_t most) {
  const bool is_open = most == std::numeric_limits<int64_t>::max();
  const std::string expected =
      is_open ? fmt::format("a whole number of at least {}", least)
              : fmt::format("a whole number from {} to {}", least, most);
  return CLI::Validator(
      [=](std::string& text) {
        const auto value = parse_number<int64_t>(text);
        const bool fits = value && *value >= least && *value <= most;
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
        const auto value = parse_number<double>(text);
        const bool fits =
            value && std::isfinite(*value) && *value < below &&
            (bound == Bound::kIncluded ? *value >= least : *value > least);
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

CLI::Validator backend_name(std::vector<std::string> names) {
  return CLI::Validator(
      [is_known = one_of(std::move(names))](std::string& text) {
        return text == "gloo" ? std::string() : is_known(text);
      },
      "");
}

std::vector<int64_t> parse_sizes(const std::string& text, int64_t factor) {
  const size_t colon = text.find(':');
  const auto first = parse_size(text.substr(0, colon));
  const auto last =
      colon == std::string::npos ? first : parse_size(text.substr(colon + 1));
  if (!first || !last || *first > *last) {
    throw BadUsage(fmt::format(
        "[usage] --sizes: expected FIRST:LAST or one size, where each is a "
        "whole number with an optional K, M or G, from 1 to 16G, and FIRST is "
        "at most LAST, got '{}'; try --sizes 4K:256M",
        text));
  }
  std::vector<int64_t> sizes;
  for (int64_t size = *first; size <= *last; size *= factor) {
    sizes.push_back(size);
  }
  return sizes;
}

}  // namespace lockstep::cli
