#include <algorithm>
#include <cstdio>
#include <memory>
#include <unistd.h>

#include <fmt/format.h>

#include "lockstep/base/exit_code.h"
#include "lockstep/base/format.h"
#include "lockstep/base/json.h"
#include "lockstep/base/output.h"
#include "lockstep/base/process.h"
#include "lockstep/base/terminal.h"
#include "lockstep/cli/commands.h"
#include "lockstep/cli/embed/device_options.h"
#include "lockstep/cli/start/add_option.h"
#include "lockstep/cli/start/checks.h"
#include "lockstep/cli/start/program.h"
#include "lockstep/device/links/link_guard.h"
#include "lockstep/report/doctor/self_test.h"

namespace lockstep::cli {
namespace {

struct CheckFlags {
  DeviceFlags devices;
  int rounds = 1;
  double timeout_s = LinkCheckOptions().timeout_s();
  bool as_json = false;
  bool is_full = false;
  std::string report;
};

void print_verdict(bool is_ok, const std::string& text) {
  const bool is_coloured = wants_colour(STDOUT_FILENO);
  const char* colour = is_ok ? "\033[32m" : "\033[31m";
  fmt::print("{}{:<3}{}   {}\n", is_coloured ? colour : "",
             is_ok ? "ok" : "bad", is_coloured ? "\033[0m" : "", text);
  std::fflush(stdout);
}

void print_text(const std::vector<Link>& links,
                const std::vector<LinkFinding>& findings) {
  for (const Link& link : links) {
    const auto bad = std::ranges::find_if(
        findings,
        [&](const LinkFinding& finding) { return finding.copy.link == link; });
    const bool is_ok = bad == findings.end();
    print_verdict(is_ok, is_ok ? link.name() : bad->text());
  }
}

void print_json(const std::vector<Link>& links,
                const std::vector<LinkFinding>& findings) {
  auto json = parse_json<nlohmann::ordered_json>(format_findings(findings));
  for (const Link& link : links) json["checked"].push_back(link.name());
  fmt::print("{}\n", json.dump(2));
}

void check_installation(const CheckFlags& flags) {
  const auto test = report::run_self_test(
      own_program(), to_devices(flags.devices, "all"),
      [&](const report::SelfTestPart& part) {
        if (flags.as_json) return;
        print_verdict(part.is_ok,
                      fmt::format("{:<12} {}", part.name, part.found));
      });
  const std::string details = test.details.dump(
      2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  if (!flags.report.empty()) write_atomically(flags.report, details + '\n');
  if (flags.as_json) fmt::print("{}\n", details);
  if (!test.is_ok()) throw CLI::RuntimeError(kExitFailed);
}

void check(const CheckFlags& flags) {
  if (flags.is_full) return check_installation(flags);
  const std::vector<Device> devices = to_devices(flags.devices, "all");
  if (devices.size() < 2) {
    throw BadUsage(
        "[usage] there are no links to check: expected two devices "
        "or more, got " +
        join_names(devices) + "; give --devices 2xcpu");
  }
  const std::vector<Link> links = links_between(devices);
  const auto findings = check_links_in_child(
      links,
      LinkCheckOptions().rounds(flags.rounds).timeout_s(flags.timeout_s));
  if (flags.as_json) {
    print_json(links, findings);
  } else {
    print_text(links, findings);
    if (!findings.empty()) {
      fmt::print("\n{} of {} {} data:\n  {}\n", findings.size(),
                 counted(static_cast<int64_t>(links.size()), "link"),
                 findings.size() == 1 ? "corrupts" : "corrupt",
                 describe_bad_links(findings));
    }
  }
  if (!findings.empty()) throw CLI::RuntimeError(kExitFailed);
}

}  // namespace

void add_check(CLI::App& app) {
  auto* command =
      add_command(app, "check", "Check that copies between devices are exact");
  auto flags = std::make_shared<CheckFlags>();
  add_device_options(*command, flags->devices, "all");
  add_count(*command, "--rounds", flags->rounds, {1, 1'000'000},
            "how many times each copy is made, with different bytes each time");
  add_number(*command, "--timeout", flags->timeout_s,
             "seconds after which a copy counts as hanging")
      ->type_name("S")
      ->check(number(0, Bound::kExcluded));
  auto* full = command->add_flag(
      "--full", flags->is_full,
      "test the whole installation: the machine, links, collectives, and that "
      "a few steps of training give the same bits on one device, with dp and "
      "with ddp [no]");
  add_path(
      *command, "--report", flags->report,
      "with --full: write all results here as JSON, to attach to a bug report")
      ->needs(full);
  command->add_flag("--json", flags->as_json, "print JSON [no]");
  command->footer(
      "Copies of 1 KiB, 1, 4, 16 and 64 MiB go over each link in both "
      "directions, by the copy engine and by loads of the receiving device, in "
      "a separate process.\n"
      "Exit codes: 0 all links are good, 1 some are not.");
  command->callback([flags] { check(*flags); });
}

}  // namespace lockstep::cli
