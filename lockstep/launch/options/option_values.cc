#include "lockstep/launch/options/option_values.h"

#include <algorithm>
#include <cctype>
#include <csignal>
#include <cstring>
#include <optional>
#include <sstream>

#include <fmt/format.h>

#include "lockstep/base/cores.h"
#include "lockstep/base/error.h"
#include "lockstep/base/numbers.h"
#include "lockstep/base/text.h"
#include "lockstep/launch/options/gpus.h"

namespace lockstep::launch {
namespace {

// Largest number of workers or nodes. No machine or job has more, so a larger
// number is a typing error.
constexpr int kMax = 4096;

std::optional<int> to_int(const std::string& text) {
  return parse_number<int>(text);
}

std::optional<int> to_count(const std::string& text) {
  const auto value = to_int(text);
  if (!value || *value < 1 || *value > kMax) return std::nullopt;
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

[[noreturn]] void throw_bad_option(const std::string& option,
                                   const std::string& expected,
                                   const std::string& got) {
  throw InvalidArgument("launch", {.code = ErrorCode::kBadOption,
                                   .what = "can't use " + option,
                                   .expected = expected,
                                   .got = "'" + got + "'"});
}

int core_count() { return static_cast<int>(allowed_cores().size()); }

// Returns true for a character of the name after a dollar sign.
bool is_of_name(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

std::optional<Streams> to_streams(const std::string& text) {
  const auto value = to_int(text);
  if (!value || *value < 0 || *value > 3) return std::nullopt;
  return static_cast<Streams>(*value);
}

int to_rank(const std::string& option, const std::string& text, int workers) {
  const auto rank = to_int(text);
  if (!rank || *rank < 0 || *rank >= workers) {
    throw_bad_option(
        option, fmt::format("local ranks from 0 to {}", workers - 1), text);
  }
  return *rank;
}

int signal_of(const std::string& name) {
  // Second names, which sigabbrev_np() does not return.
  if (name == "SIGIO") return SIGIO;
  if (name == "SIGIOT") return SIGIOT;
  for (int signal = 1; signal < SIGRTMIN; ++signal) {
    if (signal == SIGKILL || signal == SIGSTOP || signal == SIGCHLD) continue;
    if (::sigabbrev_np(signal) == nullptr) continue;
    if (signal_name(signal) == name) return signal;
  }
  throw InvalidArgument(
      "launch", {.code = ErrorCode::kBadOption,
                 .what = "can't handle the signal '" + name + "'",
                 .expected = "names such as SIGTERM,SIGINT,SIGUSR1",
                 .got = "'" + name + "'",
                 .fix = did_you_mean(name, {"SIGTERM", "SIGINT", "SIGHUP",
                                            "SIGQUIT", "SIGUSR1", "SIGUSR2"})});
}

}  // namespace

int parse_nproc(const std::string& text) {
  if (const auto number = to_count(text)) return *number;
  if (text == "cpu") return core_count();
  if (text == "xpu") {
    throw InvalidArgument(
        "launch",
        {.code = ErrorCode::kBadOption,
         .what = "--nproc-per-node xpu: only CUDA devices can be counted",
         .expected = "the number of XPUs",
         .got = "'xpu'",
         .fix = "give the number, such as --nproc-per-node 2"});
  }
  const int gpus = gpu_count();
  if (text == "auto") return gpus > 0 ? gpus : core_count();
  if (text == "gpu") {
    if (gpus > 0) return gpus;
    throw LaunchError(
        {.code = ErrorCode::kNoSuchDevice,
         .what = "--nproc-per-node gpu, and there is no GPU",
         .expected = "a CUDA device",
         .got = "none",
         .fix = "use --nproc-per-node cpu or a number, which is also the "
                "way to name devices of another accelerator"});
  }
  throw_bad_option("--nproc-per-node",
                   fmt::format("a number from 1 to {}, auto, cpu or gpu", kMax),
                   text);
}

NodeCount parse_nnodes(const std::string& text) {
  const auto colon = text.find(':');
  const auto least = to_count(text.substr(0, colon));
  const auto most =
      colon == std::string::npos ? least : to_count(text.substr(colon + 1));
  if (!least || !most || *least > *most) {
    throw_bad_option("--nnodes",
                     fmt::format("a number from 1 to {}, or MIN:MAX", kMax),
                     text);
  }
  return {.least = *least, .most = *most};
}

bool has(Streams streams, Streams stream) {
  return (static_cast<int>(streams) & static_cast<int>(stream)) != 0;
}

Streams StreamChoice::of(int local_rank) const {
  if (per_rank.empty()) return for_all;
  const auto found = per_rank.find(local_rank);
  return found == per_rank.end() ? Streams::kNone : found->second;
}

bool StreamChoice::is_none() const {
  return per_rank.empty() && for_all == Streams::kNone;
}

StreamChoice parse_streams(const std::string& option, const std::string& text,
                           int workers) {
  const char* form =
      "0 (none), 1 (stdout), 2 (stderr) or 3 (both), or one by local rank: "
      "0:1,1:2";
  if (const auto all = to_streams(text)) return {.for_all = *all};
  StreamChoice choice;
  for (const auto& part : split(text)) {
    const auto colon = part.find(':');
    if (colon == std::string::npos) throw_bad_option(option, form, text);
    const auto streams = to_streams(part.substr(colon + 1));
    if (!streams) throw_bad_option(option, form, text);
    choice.per_rank[to_rank(option, part.substr(0, colon), workers)] = *streams;
  }
  if (choice.per_rank.empty()) throw_bad_option(option, form, text);
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

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? std::string("SIG") + name
                         : "signal " + std::to_string(signal);
}

std::vector<int> parse_signals(const std::string& names) {
  std::vector<int> signals;
  for (const auto& name : split(names)) {
    const int signal = signal_of(std::string(trimmed(name)));
    if (std::find(signals.begin(), signals.end(), signal) == signals.end()) {
      signals.push_back(signal);
    }
  }
  return signals;
}

std::vector<std::string> parse_filters(const std::string& option,
                                       const std::string& text) {
  if (text.empty()) return {};
  std::vector<std::string> filters{""};
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] != ',') {
      filters.back() += text[at];
    } else if (at + 1 < text.size() && text[at + 1] == ',') {
      filters.back() += text[at++];
    } else {
      filters.emplace_back();
    }
  }
  for (const auto& filter : filters) {
    if (!filter.empty()) continue;
    throw_bad_option(option,
                     "texts separated by commas, with ,, for a comma in a text",
                     text);
  }
  return filters;
}

std::string fill_template(const std::string& text,
                          const std::map<std::string, std::string>& values) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    if (text[at] != '$') {
      result += text[at++];
      continue;
    }
    if (text.compare(at, 2, "$$") == 0) {
      result += '$';
      at += 2;
      continue;
    }
    const bool is_in_braces = text.compare(at, 2, "${") == 0;
    const size_t begin = at + (is_in_braces ? 2 : 1);
    size_t end = begin;
    while (end < text.size() && is_of_name(text[end])) ++end;
    const auto value = values.find(text.substr(begin, end - begin));
    const bool is_closed = end < text.size() && text[end] == '}';
    if (value != values.end() && (!is_in_braces || is_closed)) {
      result += value->second;
      at = end + (is_in_braces ? 1 : 0);
    } else {
      result += text[at++];
    }
  }
  return result;
}

}  // namespace lockstep::launch
