#include "lockstep/launch/failure/failure_report.h"

#include <fmt/format.h>

#include "lockstep/base/text.h"
#include "lockstep/launch/failure/clock.h"

namespace lockstep::launch {
namespace {

constexpr size_t kMaxOtherFailures = 8;

// `text` with `margin` before each line.
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
