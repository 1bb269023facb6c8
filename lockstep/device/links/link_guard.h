#pragma once

#include <span>
#include <string>
#include <vector>

#include "lockstep/device/device.h"
#include "lockstep/device/links/link.h"
#include "lockstep/device/links/link_check.h"

namespace lockstep {

/// Checks the links between `devices` before training uses them, once per
/// process. Slices of the host share its memory, and are checked only if a test
/// breaks their links.
///
/// Throws DeviceError with kStop if a link is bad.
void guard_links(std::span<const Device> devices, BadLinks bad_links);

/// Checks the links between `devices` now, whatever earlier checks found.
std::vector<LinkFinding> find_bad_links(std::span<const Device> devices);

/// Returns one line per finding, followed by advice on what to do.
std::string describe_bad_links(const std::vector<LinkFinding>& findings);

}  // namespace lockstep
