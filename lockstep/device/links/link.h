#pragma once

#include <compare>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/device/device.h"

namespace lockstep {

/// The way that bytes take from one device to another.
struct Link {
  Device from;
  Device to;

  /// "cpu:0 -> cpu:1".
  std::string name() const;
  /// By the devices' names: into how many slices the host is cut does not
  /// matter.
  bool operator==(const Link& other) const;
  std::strong_ordering operator<=>(const Link& other) const;
};

/// Of "cpu:0>cpu:1"; nothing if that is no link.
std::optional<Link> parse_link(std::string_view text);

/// Each ordered pair of different ones among `devices`.
std::vector<Link> links_between(std::span<const Device> devices);

}  // namespace lockstep
