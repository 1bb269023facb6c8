#include "lockstep/device/links/bad_links.h"

#include <utility>

#include "lockstep/base/names.h"

namespace lockstep {
namespace {

constexpr std::pair<BadLinks, const char*> kNames[] = {
    {BadLinks::kStage, "stage"},
    {BadLinks::kStop, "stop"},
    {BadLinks::kIgnore, "ignore"}};
constexpr const char* kWhat = "action on bad links";

}  // namespace

BadLinks parse_bad_links(const std::string& name) {
  return value_named<BadLinks>(kNames, kWhat, name);
}

std::string to_string(BadLinks bad_links) {
  return name_of<BadLinks>(kNames, kWhat, bad_links);
}

}  // namespace lockstep
