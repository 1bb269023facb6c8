#include "lockstep/device/links/link_guard.h"

#include <mutex>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/device/links/device_copy.h"
#include "lockstep/device/links/link_advice.h"
#include "lockstep/device/links/special_links.h"

namespace lockstep {
namespace {

// Slices share the host's memory, so copies between them use no link.
bool may_be_bad(std::span<const Device> devices) {
  return devices.size() >= 2 && (!devices.front().is_cpu() || has_copy_hook());
}

std::vector<Link> not_checked(std::span<const Device> devices) {
  std::vector<Link> links = links_between(devices);
  std::erase_if(links,
                [](const Link& link) { return chosen_path(link).has_value(); });
  return links;
}

}  // namespace

std::string describe_bad_links(const std::vector<LinkFinding>& findings) {
  std::vector<std::string> lines;
  bool has_accelerator = false;
  for (const LinkFinding& finding : findings) {
    lines.push_back(finding.text());
    has_accelerator = has_accelerator || !finding.copy.link.from.is_cpu();
  }
  if (has_accelerator) {
    for (auto& line : advice_on_bad_links(gather_pci_facts())) {
      lines.push_back(std::move(line));
    }
  }
  return fmt::format("{}", fmt::join(lines, "\n  "));
}

std::vector<LinkFinding> find_bad_links(std::span<const Device> devices) {
  if (!may_be_bad(devices)) return {};
  return check_links(links_between(devices), {});
}

void guard_links(std::span<const Device> devices, BadLinks bad_links) {
  if (bad_links == BadLinks::kIgnore || !may_be_bad(devices)) return;
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  const std::vector<Link> links = not_checked(devices);
  if (links.empty()) return;
  const std::vector<LinkFinding> findings = check_links(links, {});
  if (!findings.empty() && bad_links == BadLinks::kStop) {
    throw DeviceError(
        {.code = ErrorCode::kBadLink,
         .what = "copies between devices arrive changed:\n  " +
                 describe_bad_links(findings) + "\n ",
         .fix = "fix the link, leave a device out, or copy through host "
                "memory: --bad-links stage, BadLinks::kStage"});
  }
  std::set<Link> bad;
  for (const LinkFinding& finding : findings) bad.insert(finding.copy.link);
  for (const Link& link : links) {
    set_copy_path(link,
                  bad.contains(link) ? CopyPath::kStaged : CopyPath::kDirect);
  }
  if (findings.empty()) return;
  log_warning(
      "links",
      fmt::format(
          "copies between devices arrive changed; copies over these links now "
          "go through host memory, which is slower but correct:\n  {}",
          describe_bad_links(findings)));
}

}  // namespace lockstep
