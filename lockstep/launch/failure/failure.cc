#include "lockstep/launch/failure/failure.h"

#include <algorithm>
#include <csignal>
#include <cstring>

#include <fmt/format.h>

#include "lockstep/base/exit_code.h"
#include "lockstep/base/json.h"
#include "lockstep/base/printable.h"
#include "lockstep/base/text.h"
#include "lockstep/launch/failure/clock.h"
#include "lockstep/launch/options/option_values.h"

namespace lockstep::launch {
namespace {

using nlohmann::json;

// Limits for text from other agents, which is trusted as little as a worker's
// text.
constexpr size_t kMaxTextBytes = 16 << 10;
constexpr size_t kMaxLines = 50;
// Largest number of other failures in a report.
constexpr size_t kMaxOtherFailures = 8;

json to_json(const Failure& failure) {
  return {{"rank", failure.rank},
          {"local_rank", failure.local_rank},
          {"node_rank", failure.node_rank},
          {"host", failure.host},
          {"pid", failure.pid},
          {"exit_code", failure.exit_code},
          {"signal", failure.signal},
          {"time_s", failure.time_s},
          {"is_cause", failure.is_cause},
          {"is_consequence", failure.is_consequence},
          {"message", failure.message},
          {"callstack", failure.callstack},
          {"last_lines", failure.last_lines},
          {"log_folder", failure.log_folder}};
}

std::string text_of(const json& object, const char* key) {
  return printable(object.at(key).get<std::string>(), kMaxTextBytes);
}

Failure from_json(const json& object) {
  Failure failure{.rank = object.at("rank").get<int>(),
                  .local_rank = object.at("local_rank").get<int>(),
                  .node_rank = object.at("node_rank").get<int>(),
                  .host = text_of(object, "host"),
                  .pid = object.at("pid").get<int>(),
                  .exit_code = object.at("exit_code").get<int>(),
                  .signal = object.at("signal").get<int>(),
                  .time_s = object.at("time_s").get<double>(),
                  .is_cause = object.at("is_cause").get<bool>(),
                  .is_consequence = object.value("is_consequence", false),
                  .message = text_of(object, "message"),
                  .callstack = text_of(object, "callstack"),
                  .last_lines = {},
                  .log_folder = text_of(object, "log_folder")};
  for (const auto& line : object.at("last_lines")) {
    if (failure.last_lines.size() == kMaxLines) break;
    failure.last_lines.push_back(printable(line.get<std::string>(), 400));
  }
  return failure;
}

bool comes_before(const Failure& a, const Failure& b) {
  if (a.is_cause != b.is_cause) return a.is_cause;
  if (a.is_consequence != b.is_consequence) return b.is_consequence;
  if (a.time_s != b.time_s) return a.time_s < b.time_s;
  return a.rank < b.rank;
}

// Returns `text` with `margin` before each line.
std::string indented(const std::string& text, const std::string& margin) {
  std::string result;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = text.find('\n', begin);
    if (end == std::string::npos) end = text.size();
    result += margin + text.substr(begin, end - begin) + "\n";
    begin = end + 1;
  }
  return result;
}

std::string in_short(const Failure& failure, const Failure& root) {
  std::string why = first_line(failure.message);
  if (why.empty() && !failure.last_lines.empty()) {
    why = failure.last_lines.back();
  }
  // A message that all ranks share is printed once.
  if (!why.empty() && why == first_line(root.message)) {
    why = fmt::format("the same as rank {}", root.rank);
  }
  return fmt::format("    rank {} on {}: {}{}{}\n", failure.rank, failure.host,
                     failure.how_it_ended(), why.empty() ? "" : ": ", why);
}

std::string other_failures(const std::vector<Failure>& failures,
                           const Failure& root) {
  std::string text;
  size_t count = 0;
  for (const auto& failure : failures) {
    if (&failure == &root || !failure.is_cause) continue;
    if (++count <= kMaxOtherFailures) text += in_short(failure, root);
  }
  if (count > kMaxOtherFailures) {
    text += fmt::format("    and {} more\n", count - kMaxOtherFailures);
  }
  return text.empty() ? text : "  other failures, later:\n" + text;
}

std::string details(const Failure& failure) {
  std::string text;
  const auto line = [&](const char* name, const std::string& value) {
    if (!value.empty()) text += fmt::format("    {:<8} {}\n", name, value);
  };
  line("ended", failure.how_it_ended());
  line("time", local_time(failure.time_s));
  line("message", first_line(failure.message));
  line("logs", failure.log_folder);
  // A call stack usually ends with the message, so one of the two is enough.
  if (failure.callstack.find('\n') != std::string::npos) {
    text += "    traceback:\n" + indented(failure.callstack, "      ");
  } else if (failure.message.find('\n') != std::string::npos) {
    text += "    whole message:\n" + indented(failure.message, "      ");
  } else if (failure.message.empty() && !failure.last_lines.empty()) {
    text += "    last lines of its stderr:\n";
    for (const auto& last : failure.last_lines) text += "      " + last + "\n";
  }
  return text;
}

}  // namespace

bool Failure::is_from_outside() const {
  const bool may_come_from_outside = signal == SIGKILL || signal == SIGTERM ||
                                     signal == SIGINT || signal == SIGHUP;
  // An agent that kills a worker because it hangs leaves a message.
  return may_come_from_outside && message.empty();
}

std::string Failure::how_it_ended() const {
  if (signal == 0) return "exit code " + std::to_string(exit_code);
  return signal_name(signal) + " (" + ::strsignal(signal) + ")";
}

json to_json(const std::vector<Failure>& failures) {
  json list = json::array();
  for (const auto& failure : failures) list.push_back(to_json(failure));
  return list;
}

std::vector<Failure> failures_from_json(const std::string& text) {
  std::vector<Failure> failures;
  const json list = try_parse_json(text);
  if (!list.is_array()) return failures;
  for (const auto& object : list) {
    try {
      failures.push_back(from_json(object));
    } catch (const json::exception&) {
      continue;
    }
  }
  return failures;
}

void admit_late_causes(std::vector<Failure>& failures) {
  const auto explains = [](const Failure& failure) {
    return failure.is_cause && !failure.is_consequence;
  };
  const auto is_cause = [](const Failure& failure) { return failure.is_cause; };
  if (std::none_of(failures.begin(), failures.end(), is_cause) ||
      std::any_of(failures.begin(), failures.end(), explains)) {
    return;
  }
  for (Failure& failure : failures) {
    if (failure.is_consequence || failure.message.empty()) continue;
    if (failure.signal == 0) failure.is_cause = true;
  }
}

const Failure* root_cause(const std::vector<Failure>& failures) {
  const Failure* first = nullptr;
  for (const auto& failure : failures) {
    if (first == nullptr || comes_before(failure, *first)) first = &failure;
  }
  return first;
}

int exit_code_of(const std::vector<Failure>& failures) {
  const Failure* root = root_cause(failures);
  if (root == nullptr) return kExitFailed;
  const bool was_ended = root->signal != 0 && !root->message.empty();
  for (const int code : {kExitBadUsage, kExitTrainingFailed}) {
    const auto has_code = [code](const Failure& failure) {
      return failure.signal == 0 && failure.exit_code == code;
    };
    const bool is_code_of_job =
        was_ended ? std::any_of(failures.begin(), failures.end(), has_code)
                  : has_code(*root);
    if (is_code_of_job) return code;
  }
  return kExitFailed;
}

std::string failure_report(const std::vector<Failure>& failures) {
  const Failure* root = root_cause(failures);
  if (root == nullptr) return {};
  return fmt::format(
      "[launch] the job failed\n{}"
      "  root cause: rank {} (local rank {}) on {}, node {}, pid {}\n{}",
      other_failures(failures, *root), root->rank, root->local_rank, root->host,
      root->node_rank, root->pid, details(*root));
}

}  // namespace lockstep::launch
