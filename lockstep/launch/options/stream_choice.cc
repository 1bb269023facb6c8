#include "lockstep/launch/options/stream_choice.h"

#include <charconv>
#include <optional>
#include <sstream>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::launch {
namespace {

std::optional<int> to_int(const std::string& text) {
  int value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, value);
  if (code != std::errc() || stop != end) return std::nullopt;
  return value;
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) {
    parts.push_back(part);
  }
  return parts;
}

std::optional<Streams> to_streams(const std::string& text) {
  const auto value = to_int(text);
  if (!value || *value < 0 || *value > 3) return std::nullopt;
  return static_cast<Streams>(*value);
}

[[noreturn]] void throw_bad_option(const std::string& option,
                                   const std::string& expected,
                                   const std::string& got) {
  throw InvalidArgument("launch", {.code = ErrorCode::kBadOption,
                                   .what = "can't use " + option,
                                   .expected = expected,
                                   .got = "'" + got + "'"});
}

int to_rank(const std::string& option, const std::string& text, int workers) {
  const auto rank = to_int(text);
  if (!rank || *rank < 0 || *rank >= workers) {
    throw_bad_option(
        option, fmt::format("local ranks from 0 to {}", workers - 1), text);
  }
  return *rank;
}

}  // namespace

bool has(Streams streams, Streams stream) {
  return (static_cast<int>(streams) & static_cast<int>(stream)) != 0;
}

Streams StreamChoice::of(int local_rank) const {
  if (of_rank.empty()) return of_all;
  const auto found = of_rank.find(local_rank);
  return found == of_rank.end() ? Streams::kNone : found->second;
}

bool StreamChoice::is_none() const {
  return of_rank.empty() && of_all == Streams::kNone;
}

StreamChoice parse_streams(const std::string& option, const std::string& text,
                           int workers) {
  const char* form =
      "0 (none), 1 (stdout), 2 (stderr) or 3 (both), or one by local rank: "
      "0:1,1:2";
  if (const auto all = to_streams(text)) return {.of_all = *all};
  StreamChoice choice;
  for (const auto& part : split(text)) {
    const auto colon = part.find(':');
    if (colon == std::string::npos) throw_bad_option(option, form, text);
    const auto streams = to_streams(part.substr(colon + 1));
    if (!streams) throw_bad_option(option, form, text);
    choice.of_rank[to_rank(option, part.substr(0, colon), workers)] = *streams;
  }
  if (choice.of_rank.empty()) throw_bad_option(option, form, text);
  return choice;
}

std::vector<int> parse_ranks(const std::string& option, const std::string& text,
                             int workers) {
  std::vector<int> ranks;
  for (const auto& part : split(text)) {
    ranks.push_back(to_rank(option, part, workers));
  }
  return ranks;
}

}  // namespace lockstep::launch
