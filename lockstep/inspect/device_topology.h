#pragma once

#include <span>

#include "lockstep/device/device.h"
#include "lockstep/inspect/topology.h"

namespace lockstep::inspect {

/// How `devices`, all of one kind, are connected: slices by what their cores
/// share, GPUs by what the driver says. Throws DeviceError if it says nothing.
Topology device_topology(std::span<const Device> devices);

}  // namespace lockstep::inspect
