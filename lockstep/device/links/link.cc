#include "lockstep/device/links/link.h"

#include <tuple>
#include <utility>

#include "lockstep/base/names.h"
#include "lockstep/base/numbers.h"

namespace lockstep {
namespace {

auto key_of(const Link& link) {
  return std::tuple(link.from.type, link.from.index, link.to.type,
                    link.to.index);
}

std::optional<Device> parse_device(std::string_view text) {
  const size_t colon = text.find(':');
  if (colon == std::string_view::npos) return std::nullopt;
  const auto type = parse_device_type(text.substr(0, colon));
  const auto index = parse_number<int>(text.substr(colon + 1));
  if (!type || !index || *index < 0) return std::nullopt;
  return Device{
      .type = *type, .index = *index, .slices = *type == c10::kCPU ? 1 : 0};
}

constexpr std::pair<BadLinks, const char*> kBadLinks[] = {
    {BadLinks::kStage, "stage"},
    {BadLinks::kStop, "stop"},
    {BadLinks::kIgnore, "ignore"}};
constexpr const char* kActionOnBadLinks = "action on bad links";

}  // namespace

std::string Link::name() const { return from.name() + " -> " + to.name(); }

bool Link::operator==(const Link& other) const {
  return key_of(*this) == key_of(other);
}

std::strong_ordering Link::operator<=>(const Link& other) const {
  return key_of(*this) <=> key_of(other);
}

std::optional<Link> parse_link(std::string_view text) {
  const size_t arrow = text.find('>');
  if (arrow == std::string_view::npos) return std::nullopt;
  const auto from = parse_device(text.substr(0, arrow));
  const auto to = parse_device(text.substr(arrow + 1));
  if (!from || !to) return std::nullopt;
  return Link{*from, *to};
}

std::vector<Link> links_between(std::span<const Device> devices) {
  std::vector<Link> links;
  for (const Device& from : devices) {
    for (const Device& to : devices) {
      if (from.type == to.type && from.index == to.index) continue;
      links.push_back({from, to});
    }
  }
  return links;
}

BadLinks parse_bad_links(const std::string& name) {
  return value_named<BadLinks>(kBadLinks, kActionOnBadLinks, name);
}

std::string to_string(BadLinks bad_links) {
  return name_of<BadLinks>(kBadLinks, kActionOnBadLinks, bad_links);
}

}  // namespace lockstep
