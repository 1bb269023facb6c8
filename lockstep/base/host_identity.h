#pragma once

#include <string>

namespace lockstep {

/// Returns the host name of this machine.
std::string host_name();

/// Returns an id that the kernel generates at each boot. Two processes that
/// read the same id run on the same kernel. Returns "" if it can't be read.
std::string boot_id();

/// Returns the namespace of this process of the given kind ("pid", "net" or
/// "time"), such as "pid:[4026531836]", or "pid:?" if it can't be read.
std::string namespace_id(const char* kind);

}  // namespace lockstep
