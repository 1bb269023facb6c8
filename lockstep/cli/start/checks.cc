#include "lockstep/cli/start/checks.h"

#include <charconv>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "lockstep/base/numbers.h"

namespace lockstep::cli {
namespace {

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
