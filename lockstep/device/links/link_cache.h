#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/device/links/link_check.h"

namespace lockstep {

/// What checks found, on the disk: a file for each set of GPUs, driver and
/// boot. What can't be read or written is as if it were not there.
class LinkCache {
 public:
  /// In LOCKSTEP_CACHE_DIR, XDG_CACHE_HOME/lockstep or ~/.cache/lockstep.
  static LinkCache of_this_machine();
  /// `identity`: what the findings are of.
  LinkCache(const std::string& folder, const std::string& identity);

  /// Nothing unless all of `links` were checked.
  std::optional<std::vector<LinkFinding>> find(
      std::span<const Link> links) const;
  void save(std::span<const Link> links,
            const std::vector<LinkFinding>& findings) const;

 private:
  std::string path_;  // "": there is no place for it
};

}  // namespace lockstep
