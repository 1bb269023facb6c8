#pragma once

#include <compare>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/device/device.h"

namespace lockstep {

/// A directed connection from one device to another.
struct Link {
  Device from;
  Device to;

  /// Returns "cpu:0 -> cpu:1".
  std::string name() const;
  /// Compares the names of the devices. The number of slices does not matter.
  bool operator==(const Link& other) const;
  std::strong_ordering operator<=>(const Link& other) const;
};

/// Parses "cpu:0>cpu:1". Returns nullopt if `text` is not a link.
std::optional<Link> parse_link(std::string_view text);

/// Returns each ordered pair of different devices in `devices`.
std::vector<Link> links_between(std::span<const Device> devices);

/// Reaction of a run to copies between its devices that change data.
enum class BadLinks {
  kStage,   ///< warn, and copy through memory of the host
  kStop,    ///< end with an error
  kIgnore,  ///< don't check
};

/// Accepts "stage", "stop" and "ignore". Throws InvalidArgument that names the
/// nearest.
BadLinks parse_bad_links(const std::string& name);
std::string to_string(BadLinks bad_links);

}  // namespace lockstep
