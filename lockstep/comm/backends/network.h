#pragma once

#include <string>

namespace lockstep {

/// The address that this host has in the network in which `peer` (a name or an
/// address) is: "127.0.0.1" for the host itself. Nothing is sent. Throws
/// CommError if there is no way to `peer`.
std::string local_address_towards(const std::string& peer);

}  // namespace lockstep
