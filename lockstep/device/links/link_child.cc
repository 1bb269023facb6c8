// Checks links in a child process.
#include <algorithm>
#include <filesystem>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/child_process.h"
#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/exit_code.h"
#include "lockstep/base/json.h"
#include "lockstep/base/names.h"
#include "lockstep/base/process.h"
#include "lockstep/base/text.h"
#include "lockstep/device/links/link_check.h"

namespace lockstep {
namespace {

// Time to start, to find the GPUs, and to fill memory.
constexpr double kStartSeconds = 120;
// Time for all copies over one slow link.
constexpr double kRoundSeconds = 10;

constexpr std::pair<LinkFinding::Kind, const char*> kFindingKinds[] = {
    {LinkFinding::Kind::kChanged, "changed"},
    {LinkFinding::Kind::kNotWritten, "not written"},
    {LinkFinding::Kind::kTimeout, "timeout"}};
constexpr const char* kFindingKind = "kind of finding";

std::string find_program() {
  if (const auto named = env("LOCKSTEP_PROGRAM")) return *named;
  const std::string own = own_program();
  if (std::filesystem::path(own).filename() == "lockstep") return own;
  return "lockstep";
}

std::vector<std::string> arguments_for(std::span<const Link> links,
                                       const LinkCheckOptions& options) {
  std::vector<std::string> names;
  int slices = 1;
  for (const Link& link : links) {
    names.push_back(link.from.name() + ">" + link.to.name());
    slices = std::max({slices, link.from.slices, link.to.slices});
  }
  return {find_program(), "check-links",
          "--links",      fmt::format("{}", fmt::join(names, ",")),
          "--slices",     fmt::format("{}", slices),
          "--sizes",      fmt::format("{}", fmt::join(options.sizes(), ",")),
          "--rounds",     fmt::format("{}", options.rounds()),
          "--timeout",    fmt::format("{}", options.timeout_s())};
}

}  // namespace

std::vector<LinkFinding> parse_findings(const std::string& text,
                                        std::span<const Link> links) {
  std::vector<LinkFinding> findings;
  const auto json = parse_json(text);
  for (const auto& entry : json.at("findings")) {
    const std::string name = entry.at("link");
    const auto link =
        std::find_if(links.begin(), links.end(),
                     [&](const Link& known) { return known.name() == name; });
    if (link == links.end()) continue;
    const bool is_by_kernel = entry.at("by_kernel");
    findings.push_back(
        {.copy = {.link = *link,
                  .method = is_by_kernel ? CopyMethod::kLoadsAndStores
                                         : CopyMethod::kCopyEngine,
                  .bytes = entry.at("bytes")},
         .kind = value_named<LinkFinding::Kind>(
             kFindingKinds, kFindingKind, entry.at("kind").get<std::string>()),
         .first_byte = entry.at("first_byte"),
         .wrong_bytes = entry.at("wrong_bytes")});
  }
  return findings;
}

std::string format_findings(const std::vector<LinkFinding>& findings) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const LinkFinding& finding : findings) {
    list.push_back(
        {{"link", finding.copy.link.name()},
         {"by_kernel", finding.copy.method == CopyMethod::kLoadsAndStores},
         {"bytes", finding.copy.bytes},
         {"kind", name_of<LinkFinding::Kind>(kFindingKinds, kFindingKind,
                                             finding.kind)},
         {"first_byte", finding.first_byte},
         {"wrong_bytes", finding.wrong_bytes}});
  }
  return nlohmann::ordered_json{{"findings", std::move(list)}}.dump();
}

std::vector<LinkFinding> check_links_in_child(std::span<const Link> links,
                                              const LinkCheckOptions& options) {
  // A link's check ends with its first copy that hangs.
  const Command command{
      .arguments = arguments_for(links, options),
      .deadline_s = kStartSeconds + static_cast<double>(links.size()) *
                                        (options.timeout_s() +
                                         kRoundSeconds * options.rounds())};
  CommandResult result;
  try {
    result = run_command(command);
  } catch (const ProcessStartError&) {
    return check_links(links, options);
  }
  // Another version of the program does not know the command, or the program
  // does not have the devices: it is another build, or this program has loaded
  // a library that adds a type of device to LibTorch.
  if (result.exit_code == kExitBadUsage) return check_links(links, options);
  std::string reason = describe_end(result, command);
  if (result.ok()) {
    try {
      return parse_findings(last_line(result.out), links);
    } catch (const std::exception& error) {
      reason = text_of(error);
    }
  }
  throw DeviceError({.code = ErrorCode::kDeviceFailed,
                     .what = "the check of the links between devices failed",
                     .got = fmt::format("{} {}", reason,
                                        without_tags(last_line(result.err)))});
}

}  // namespace lockstep
