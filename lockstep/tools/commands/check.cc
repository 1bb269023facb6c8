#include <cstdio>
#include <limits>
#include <memory>
#include <unistd.h>

#include <fmt/format.h>

#include "lockstep/base/exit_code.h"
#include "lockstep/base/format.h"
#include "lockstep/base/output.h"
#include "lockstep/base/process.h"
#include "lockstep/base/terminal.h"
#include "lockstep/base/text.h"
#include "lockstep/cli/embed/device_options.h"
#include "lockstep/cli/start/add_option.h"
#include "lockstep/cli/start/program.h"
#include "lockstep/device/memory.h"
#include "lockstep/tools/check/check_installation.h"
#include "lockstep/tools/commands/commands.h"

namespace lockstep::cli {
namespace {

using tools::Finding;
using tools::Verdict;

struct CheckFlags {
  DeviceFlags devices;
  tools::CheckOptions options;
  bool is_verbose = false;
  bool as_json = false;
  std::string report;
};

const char* colour_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOk:
      return "\033[32m";
    case Verdict::kWarn:
      return "\033[33m";
    case Verdict::kFail:
      return "\033[31m";
  }
  return "";
}

void print(const Finding& finding) {
  const bool is_coloured = wants_colour(STDOUT_FILENO);
  // Without a terminal, a finding stays on one line, so that its words can be
  // searched for.
  const size_t columns =
      is_terminal(STDOUT_FILENO)
          ? static_cast<size_t>(terminal_width(STDOUT_FILENO))
          : std::numeric_limits<size_t>::max();
  constexpr size_t kIndent = 21;
  // Wraps the text as if the columns before it were empty.
  const std::string lines =
      wrap(std::string(kIndent, ' ') + finding.found, columns, kIndent);
  fmt::print("{}{:<4}{}  {:<13}  {}\n",
             is_coloured ? colour_of(finding.verdict) : "",
             name_of(finding.verdict), is_coloured ? "\033[0m" : "",
             finding.topic, lines.substr(std::min(kIndent, lines.size())));
  if (!finding.fix.empty()) {
    fmt::print("{}\n", wrap(std::string(kIndent, ' ') + "-> " + finding.fix,
                            columns, kIndent + 3));
  }
  std::fflush(stdout);
}

// A copy over a bad link may never end, and the thread that waits for it would
// keep the process from ending.
[[noreturn]] void end_now(int exit_code) {
  flush_output(stdout);
  ::_exit(exit_code);
}

void check(const CheckFlags& flags) {
  const std::vector<Device> devices = to_devices(flags.devices, "all");
  install_accounting_allocator();
  const auto on_finding = [&](const Finding& finding) {
    const bool is_shown = flags.is_verbose || !finding.is_detail ||
                          finding.verdict != Verdict::kOk;
    if (!flags.as_json && is_shown) print(finding);
  };
  const tools::InstallationCheck result = tools::check_installation(
      own_program(), devices, flags.options, on_finding);
  // The value of a variable need not be valid UTF-8.
  const std::string details = result.details.dump(
      2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  if (!flags.report.empty()) write_atomically(flags.report, details + '\n');
  const int64_t failures = result.count(Verdict::kFail);
  const int64_t warnings = result.count(Verdict::kWarn);
  if (flags.as_json) {
    fmt::print("{}\n", details);
  } else if (failures > 0) {
    fmt::print("{} to fix.\n", counted(failures, "problem"));
  } else if (warnings > 0) {
    fmt::print("Ready to train; {}.\n", counted(warnings, "warning"));
  } else {
    fmt::print("Ready to train.\n");
  }
  end_now(failures > 0 ? kExitFailed : kExitDone);
}

}  // namespace

void add_check(CLI::App& app) {
  auto* command = add_command(
      app, "check", "Check this machine and the links between its devices");
  auto flags = std::make_shared<CheckFlags>();
  add_options(*command, device_options(flags->devices, "all"));
  add_options(
      *command,
      {{.name = "--full",
        .value = &flags->options.full(),
        .help = "also run collectives, and train a few steps, which must give "
                "the same bits on one device, with dp and with ddp"},
       {.name = "--verbose",
        .value = &flags->is_verbose,
        .help = "print what is well, too"},
       {.name = "--rounds",
        .value = &flags->options.links().rounds(),
        .help = "how many times each copy is made, with different bytes each "
                "time",
        .range = between(1, 1'000'000)},
       {.name = "--timeout",
        .value = &flags->options.links().timeout_s(),
        .help = "seconds after which a copy counts as hanging",
        .type = "S",
        .range = above(0)},
       {.name = "--json", .value = &flags->as_json, .help = "print JSON"},
       {.name = "--report",
        .value = &flags->report,
        .help = "write all results here as JSON, to attach to a bug report",
        .type = "PATH",
        .default_text = "none"}});
  command->footer(
      "Copies of 1 KiB, 1, 4, 16 and 64 MiB go over each link in both "
      "directions, by the copy engine and by loads of the receiving device.\n"
      "Exit codes: 0 all is well, 1 there is a problem.");
  command->callback([flags] { check(*flags); });
}

}  // namespace lockstep::cli
