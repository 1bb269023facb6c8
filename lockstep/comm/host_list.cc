#include "lockstep/comm/host_list.h"

#include <algorithm>
#include <charconv>
#include <cstdint>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr std::string_view kDigits = "0123456789";
constexpr std::string_view kNameParts =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_";
constexpr size_t kLongestName = 253;
constexpr int kMost = 1 << 20;  // tasks, more than any job has

[[noreturn]] void refuse(std::string_view variable, std::string_view expected,
                         std::string_view list) {
  throw InvalidArgument(
      "env",
      {.code = ErrorCode::kBadVariable,
       .what = fmt::format("can't use the variable {}", variable),
       .expected = std::string(expected),
       .got = fmt::format("'{}'{}", list.substr(0, 200),
                          list.size() > 200 ? "..." : ""),
       .fix = "set MASTER_ADDR and MASTER_PORT, or start with torchrun"});
}

/// Cuts off and returns the longest start of `text` made of `characters`.
std::string_view take(std::string_view& text, std::string_view characters) {
  const size_t end = std::min(text.find_first_not_of(characters), text.size());
  const std::string_view taken = text.substr(0, end);
  text.remove_prefix(end);
  return taken;
}

bool take(std::string_view& text, char character) {
  if (!text.starts_with(character)) return false;
  text.remove_prefix(1);
  return true;
}

/// The first number of "03-05,9]", and cuts all of that off; empty if it is
/// none.
std::string_view take_ranges(std::string_view& text) {
  std::string_view first;
  do {
    const std::string_view from = take(text, kDigits);
    if (first.empty()) first = from;
    if (from.empty()) return {};
    if (take(text, '-') && take(text, kDigits).empty()) return {};
  } while (take(text, ','));
  return take(text, ']') ? first : std::string_view();
}

/// Cuts a number from 1 up off; 0 if there is none.
int take_count(std::string_view& text) {
  const std::string_view digits = take(text, kDigits);
  int value = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), value);
  return error == std::errc() && value <= kMost ? value : 0;
}

}  // namespace

std::string first_host(std::string_view list, std::string_view variable) {
  constexpr std::string_view kExpected = "a list such as node[03-05,9],login";
  std::string_view rest = list;
  std::string host;
  while (!rest.empty() && rest.front() != ',') {
    // Several ranges may follow each other: rack[0-1]node[1-4].
    std::string_view part = take(rest, kNameParts);
    if (part.empty() && take(rest, '[')) part = take_ranges(rest);
    if (part.empty() || host.size() + part.size() > kLongestName) {
      refuse(variable, kExpected, list);
    }
    host += part;
  }
  // A name that starts with '-' could be taken for an option.
  if (host.empty() || host.front() == '-' || host.front() == '.') {
    refuse(variable, kExpected, list);
  }
  return host;
}

int tasks_of_node(std::string_view list, std::string_view variable, int node,
                  int& total) {
  constexpr std::string_view kExpected = "a list such as 2(x3),1";
  std::string_view rest = list;
  int64_t nodes = 0, tasks = 0;
  int result = 0;
  do {
    const int count = take_count(rest);
    int times = 1;
    if (take(rest, '(')) {
      times = take(rest, 'x') ? take_count(rest) : 0;
      if (!take(rest, ')')) times = 0;
    }
    if (count == 0 || times == 0) refuse(variable, kExpected, list);
    if (nodes <= node && node < nodes + times) result = count;
    nodes += times;
    tasks += int64_t{count} * times;
    if (tasks > kMost) refuse(variable, fmt::format("up to {}", kMost), list);
  } while (take(rest, ','));
  if (!rest.empty()) refuse(variable, kExpected, list);
  if (result == 0) {
    refuse(variable, fmt::format("one that has node {} (SLURM_NODEID)", node),
           list);
  }
  total = static_cast<int>(tasks);
  return result;
}

}  // namespace lockstep
