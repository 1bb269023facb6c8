#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <unistd.h>

#include <fmt/format.h>

#include "lockstep/base/exit_code.h"
#include "lockstep/base/format.h"
#include "lockstep/base/json.h"
#include "lockstep/base/terminal.h"
#include "lockstep/base/text.h"
#include "lockstep/cli/commands.h"
#include "lockstep/cli/start/program.h"
#include "lockstep/report/doctor/diagnose.h"

namespace lockstep::cli {
namespace {

using report::Finding;
using report::Verdict;

struct VerdictText {
  const char* name;
  const char* colour;
};

// In the order of Verdict.
constexpr std::array<VerdictText, 3> kVerdictTexts = {
    {{"ok", "\033[32m"}, {"warn", "\033[33m"}, {"fail", "\033[31m"}}};

const VerdictText& text_of_verdict(Verdict verdict) {
  return kVerdictTexts[static_cast<size_t>(verdict)];
}

long count(const std::vector<Finding>& findings, Verdict verdict) {
  return std::ranges::count(findings, verdict, &Finding::verdict);
}

void print_text(const std::vector<Finding>& findings) {
  const bool is_coloured = wants_colour(STDOUT_FILENO);
  size_t width = 0;
  for (const auto& finding : findings) {
    width = std::max(width, finding.topic.size());
  }
  // Without a terminal, a finding stays on one line, so that its words can be
  // searched for.
  const size_t columns =
      is_terminal(STDOUT_FILENO)
          ? static_cast<size_t>(terminal_width(STDOUT_FILENO))
          : std::numeric_limits<size_t>::max();
  const size_t indent = width + 8;
  for (const auto& [topic, verdict, found, fix] : findings) {
    const VerdictText& verdict_text = text_of_verdict(verdict);
    // Wraps the text as if the columns before it were empty.
    const std::string lines =
        wrap(std::string(indent, ' ') + found, columns, indent);
    fmt::print("{}{:<4}{}  {:<{}}  {}\n",
               is_coloured ? verdict_text.colour : "", verdict_text.name,
               is_coloured ? "\033[0m" : "", topic, width,
               lines.substr(std::min(indent, lines.size())));
    if (fix.empty()) continue;
    fmt::print("{}\n", wrap(std::string(indent, ' ') + "-> " + fix, columns,
                            indent + 3));
  }
  const long failures = count(findings, Verdict::kFail);
  const long warnings = count(findings, Verdict::kWarn);
  if (failures > 0) {
    fmt::print("Training is impossible here: {} to fix.\n",
               counted(failures, "problem"));
  } else if (warnings > 0) {
    fmt::print("Ready to train; {} to look at.\n",
               counted(warnings, "warning"));
  } else {
    fmt::print("Ready to train.\n");
  }
}

void print_json(const std::vector<Finding>& findings) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const auto& [topic, verdict, found, fix] : findings) {
    list.push_back({{"topic", topic},
                    {"verdict", text_of_verdict(verdict).name},
                    {"found", found},
                    {"fix", fix}});
  }
  const nlohmann::ordered_json json = {
      {"can_train", count(findings, Verdict::kFail) == 0},
      {"findings", std::move(list)}};
  // The value of a variable need not be valid UTF-8.
  fmt::print("{}\n",
             json.dump(2, ' ', false,
                       nlohmann::ordered_json::error_handler_t::replace));
}

}  // namespace

void add_doctor(CLI::App& app) {
  auto* command =
      add_command(app, "doctor", "Check this machine, and show what to fix");
  auto as_json = std::make_shared<bool>(false);
  command->add_flag("--json", *as_json, "print JSON [no]");
  command->footer("Exit codes: 0 training is possible, 1 it is not.");
  command->callback([as_json] {
    const auto findings = report::diagnose(report::gather_host_facts());
    *as_json ? print_json(findings) : print_text(findings);
    if (count(findings, Verdict::kFail) > 0)
      throw CLI::RuntimeError(kExitFailed);
  });
}

}  // namespace lockstep::cli
