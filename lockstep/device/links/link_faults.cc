#include "lockstep/device/links/link_faults.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/numbers.h"
#include "lockstep/device/links/device_copy.h"

namespace lockstep {
namespace {

[[noreturn]] void refuse(std::string_view text) {
  throw InvalidArgument(
      "links",
      {.code = ErrorCode::kBadVariable,
       .what = fmt::format("{} can't be read", kLinkFaultsVariable),
       .expected = "KIND:FROM>TO or KIND:FROM>TO@BYTES, with KIND one of "
                   "corrupt, drop and delay=SECONDS, such as "
                   "corrupt:cpu:0>cpu:1",
       .got = std::string(text)});
}

template <class T>
std::optional<T> number(std::string_view text) {
  const auto value = parse_number<T>(text);
  return value && *value >= 0 ? value : std::nullopt;
}

LinkFault parse_one(std::string_view text) {
  LinkFault fault;
  std::string_view rest = text;
  if (rest.starts_with("corrupt:")) {
    fault.kind = LinkFault::Kind::kCorrupt;
  } else if (rest.starts_with("drop:")) {
    fault.kind = LinkFault::Kind::kDrop;
  } else if (rest.starts_with("delay=")) {
    fault.kind = LinkFault::Kind::kDelay;
    const auto seconds =
        number<double>(rest.substr(6, rest.find(':') - rest.find('=') - 1));
    if (!seconds) refuse(text);
    fault.delay_s = *seconds;
  } else {
    refuse(text);
  }
  rest.remove_prefix(std::min(rest.find(':') + 1, rest.size()));
  if (const size_t at = rest.find('@'); at != std::string_view::npos) {
    const auto bytes = number<int64_t>(rest.substr(at + 1));
    if (!bytes) refuse(text);
    fault.least_bytes = *bytes;
    rest = rest.substr(0, at);
  }
  const auto link = parse_link(rest);
  if (!link) refuse(text);
  fault.link = *link;
  return fault;
}

struct Faults {
  std::mutex mutex;
  std::string text;
  std::shared_ptr<const std::vector<LinkFault>> faults =
      std::make_shared<const std::vector<LinkFault>>();
  std::atomic<bool> has_any{false};

  Faults() {
    const auto given = env(kLinkFaultsVariable);
    if (!given) return;
    set(*given);
    log_warning("links", fmt::format("{} breaks links on purpose: {}",
                                     kLinkFaultsVariable, *given));
  }
  void set(std::string_view given) {
    auto parsed =
        given.empty() ? std::vector<LinkFault>{} : parse_link_faults(given);
    const std::lock_guard lock(mutex);
    text = given;
    has_any = !parsed.empty();
    faults = std::make_shared<const std::vector<LinkFault>>(std::move(parsed));
  }
};

Faults& of_process() {
  static Faults faults;
  return faults;
}

}  // namespace

std::vector<LinkFault> parse_link_faults(std::string_view text) {
  std::vector<LinkFault> parsed;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(';', begin), text.size());
    parsed.push_back(parse_one(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return parsed;
}

bool has_link_faults() { return of_process().has_any; }

std::shared_ptr<const std::vector<LinkFault>> link_faults() {
  const std::lock_guard lock(of_process().mutex);
  return of_process().faults;
}

std::string link_faults_text() {
  const std::lock_guard lock(of_process().mutex);
  return of_process().text;
}

void inject_link_faults(std::string_view text) {
  of_process().set(text);
  forget_copy_paths();
}

}  // namespace lockstep
