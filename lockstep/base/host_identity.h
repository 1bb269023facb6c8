#pragma once

#include <string>

namespace lockstep {

/// What this machine calls itself.
std::string host_name();

/// A number that the kernel makes up at each boot: two processes that read the
/// same one run on the same kernel. "" if it can't be read.
std::string boot_id();

/// The namespace of one kind ("pid", "net", "time") that this process is in,
/// as "pid:[4026531836]"; "pid:?" if that can't be found out.
std::string namespace_id(const char* kind);

}  // namespace lockstep
