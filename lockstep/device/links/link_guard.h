#pragma once

#include <span>
#include <string>
#include <vector>

#include "lockstep/device/device.h"
#include "lockstep/device/links/bad_links.h"
#include "lockstep/device/links/link_check.h"

namespace lockstep {

/// Makes sure of the links between `devices` before anything is trained on
/// them. GPUs are checked once in a process, and what was found is kept on the
/// disk for as long as GPUs, driver and boot are the same. Slices of the host
/// have the same memory, and are checked only if faults are injected.
///
/// Throws DeviceError with kStop if a link is bad.
void guard_links(std::span<const Device> devices, BadLinks bad_links);

/// Checks the links between `devices` now, whatever was found before.
std::vector<LinkFinding> find_bad_links(std::span<const Device> devices);

/// What was found about `links`, each in a line, and what to do about it.
std::string describe_bad_links(const std::vector<LinkFinding>& findings);

}  // namespace lockstep
