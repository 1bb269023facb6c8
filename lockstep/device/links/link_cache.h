#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/device/links/link_check.h"

namespace lockstep {

/// Results of link checks on disk: a file for each set of GPUs, driver and
/// boot. A file that can't be read or written is treated as missing.
class LinkCache {
 public:
  /// Returns the cache in LOCKSTEP_CACHE_DIR, XDG_CACHE_HOME/lockstep or
  /// ~/.cache/lockstep.
  static LinkCache for_this_machine();
  /// `identity` identifies the hardware and software that the findings are
  /// about. Nothing is stored if it is empty.
  LinkCache(const std::string& folder, const std::string& identity);

  /// Returns nullopt unless all of `links` were checked.
  std::optional<std::vector<LinkFinding>> find(
      std::span<const Link> links) const;
  void save(std::span<const Link> links,
            const std::vector<LinkFinding>& findings) const;

 private:
  std::string path_;  // "" if no folder can be used
};

}  // namespace lockstep
