#include <csignal>
#include <memory>
#include <sys/prctl.h>
#include <unistd.h>

#include <fmt/format.h>

#include "lockstep/base/exit_code.h"
#include "lockstep/cli/commands.h"
#include "lockstep/cli/start/add_option.h"
#include "lockstep/cli/start/checks.h"
#include "lockstep/cli/start/program.h"
#include "lockstep/device/accelerator.h"
#include "lockstep/device/links/link_check.h"
#include "lockstep/device/memory.h"

namespace lockstep::cli {
namespace {

struct CheckLinksFlags {
  std::vector<std::string> links;
  int slices = 1;
  LinkCheckOptions options;
};

std::vector<Link> links_of(const CheckLinksFlags& flags) {
  std::vector<Link> links;
  for (const std::string& name : flags.links) {
    auto link = parse_link(name);
    if (!link) {
      throw BadUsage(fmt::format(
          "[usage] --links: expected FROM>TO, such as cpu:0>cpu:1, got '{}'",
          name));
    }
    for (Device* device : {&link->from, &link->to}) {
      if (device->is_cpu()) {
        device->slices = flags.slices;
      } else if (device->index >= accelerator::device_count(device->type)) {
        // The parent may have it all the same, and then makes the check.
        throw BadUsage(fmt::format("[usage] --links: this program has no {}",
                                   device->name()));
      }
    }
    links.push_back(*link);
  }
  return links;
}

}  // namespace

void add_check_links(CLI::App& app) {
  auto* command = add_command(
      app, "check-links", "Check links between devices; used by training runs");
  command->group("");  // not in the help
  auto flags = std::make_shared<CheckLinksFlags>();
  command->add_option("--links", flags->links, "FROM>TO, separated by commas")
      ->delimiter(',')
      ->required();
  command->add_option("--slices", flags->slices, "number of slices of the host")
      ->check(whole_number(1));
  command
      ->add_option("--sizes", flags->options.sizes(),
                   "bytes, separated by commas")
      ->delimiter(',')
      ->check(whole_number(8, int64_t{1} << 32));
  command
      ->add_option("--rounds", flags->options.rounds(),
                   "how many times each copy is made")
      ->check(whole_number(1));
  add_number(*command, "--timeout", flags->options.timeout_s(),
             "seconds per copy")
      ->check(number(0, Bound::kExcluded));
  command->callback([flags] {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    install_accounting_allocator();
    const auto findings = check_links(links_of(*flags), flags->options);
    fmt::print("{}\n", format_findings(findings));
    // A thread that hangs in a copy would keep the process from ending.
    std::fflush(stdout);
    ::_exit(kExitDone);
  });
}

}  // namespace lockstep::cli
