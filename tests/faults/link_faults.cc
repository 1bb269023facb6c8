#include "tests/faults/link_faults.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <torch/types.h>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/numbers.h"
#include "lockstep/device/links/special_links.h"

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

// Reverses the bytes of each word in one cache line of every 64 KiB. A model's
// numbers become huge ones or NaN.
void corrupt(torch::Tensor& destination) {
  constexpr size_t kEvery = size_t{64} << 10;
  constexpr size_t kLine = 64, kWord = 4;
  torch::Tensor host = destination.detach().to(torch::kCPU).contiguous();
  auto* bytes = static_cast<std::byte*>(host.mutable_data_ptr());
  const size_t size = host.nbytes();
  for (size_t line = 0; line < size; line += kEvery) {
    const size_t end = std::min(line + kLine, size);
    for (size_t word = line; word + kWord <= end; word += kWord) {
      std::reverse(bytes + word, bytes + word + kWord);
    }
  }
  destination.copy_(host);
}

void copy_with_faults(const std::vector<LinkFault>& faults, const Link& link,
                      torch::Tensor& destination,
                      const std::function<void()>& copy) {
  bool is_dropped = false;
  bool is_corrupt = false;
  for (const LinkFault& fault : faults) {
    const auto bytes = static_cast<int64_t>(destination.nbytes());
    if (fault.link != link || bytes < fault.least_bytes) continue;
    switch (fault.kind) {
      case LinkFault::Kind::kCorrupt:
        is_corrupt = true;
        break;
      case LinkFault::Kind::kDrop:
        is_dropped = true;
        break;
      case LinkFault::Kind::kDelay:
        std::this_thread::sleep_for(
            std::chrono::duration<double>(fault.delay_s));
        break;
    }
  }
  if (!is_dropped) copy();
  if (is_corrupt) corrupt(destination);
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

void inject_link_faults(std::string_view text) {
  if (text.empty()) return set_copy_hook(std::nullopt);
  const auto faults = parse_link_faults(text);
  set_copy_hook(CopyHook{
      .applies_to =
          [faults](const Link& link) {
            return std::any_of(
                faults.begin(), faults.end(),
                [&](const LinkFault& fault) { return fault.link == link; });
          },
      .copy =
          [faults](const Link& link, torch::Tensor& destination,
                   const std::function<void()>& copy) {
            copy_with_faults(faults, link, destination, copy);
          }});
}

void inject_link_faults_of_environment() {
  const auto given = env(kLinkFaultsVariable);
  if (!given || given->empty()) return;
  inject_link_faults(*given);
  log_warning("links", fmt::format("{} breaks links on purpose: {}",
                                   kLinkFaultsVariable, *given));
}

}  // namespace lockstep
