#include "lockstep/device/links/link_cache.h"

#include <algorithm>

#include <fmt/format.h>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/checksum.h"
#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/host_identity.h"
#include "lockstep/base/json.h"
#include "lockstep/base/version.h"
#include "lockstep/device/accelerator.h"
#include "lockstep/device/cuda/cuda.h"

namespace lockstep {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 20;

std::string cache_folder() {
  if (const auto folder = env("LOCKSTEP_CACHE_DIR")) return *folder;
  if (const auto folder = env("XDG_CACHE_HOME")) return *folder + "/lockstep";
  if (const auto home = env("HOME")) return *home + "/.cache/lockstep";
  return "";
}

// Returns "" if nothing tells the devices of this process from others: a
// variable that hides devices may show others next time. CUDA's have an UUID.
std::string identity_of_machine() {
  if (accelerator::available() != c10::kCUDA) return "";
  std::string text = std::string(kVersion) + ' ' + boot_id() + ' ' +
                     std::to_string(cuda::driver_version());
  for (int i = 0; i < accelerator::device_count(c10::kCUDA); ++i) {
    text += ' ' + cuda::uuid(i);
  }
  return text;
}

std::vector<std::string> names_of(std::span<const Link> links) {
  std::vector<std::string> names;
  for (const Link& link : links) names.push_back(link.name());
  return names;
}

}  // namespace

LinkCache LinkCache::for_this_machine() {
  return {cache_folder(), identity_of_machine()};
}

LinkCache::LinkCache(const std::string& folder, const std::string& identity) {
  if (folder.empty() || identity.empty() || boot_id().empty()) return;
  path_ = folder + "/links-" + checksum_of(identity).substr(0, 16) + ".json";
}

std::optional<std::vector<LinkFinding>> LinkCache::find(
    std::span<const Link> links) const {
  if (path_.empty()) return std::nullopt;
  try {
    const std::string text = read_file(path_, kMaxBytes);
    const auto checked = parse_json(text).at("checked");
    for (const std::string& name : names_of(links)) {
      if (std::find(checked.begin(), checked.end(), name) == checked.end()) {
        return std::nullopt;
      }
    }
    return parse_findings(text, links);
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

void LinkCache::save(std::span<const Link> links,
                     const std::vector<LinkFinding>& findings) const {
  if (path_.empty()) return;
  try {
    auto json = parse_json<nlohmann::ordered_json>(format_findings(findings));
    json["checked"] = names_of(links);
    make_directories(path_.substr(0, path_.rfind('/')));
    AtomicFile file(path_);
    file.write(json.dump(2));
    file.commit();
  } catch (const Error&) {
    // The next run will check the links again.
  }
}

}  // namespace lockstep
