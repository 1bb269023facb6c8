#pragma once

#include <span>

#include "lockstep/device/device.h"
#include "lockstep/inspect/topology.h"

namespace lockstep::inspect {

/// Returns how `devices` of one kind are connected. For slices it depends on
/// what their cores share. For GPUs the driver reports it; throws DeviceError
/// if it does not.
Topology device_topology(std::span<const Device> devices);

}  // namespace lockstep::inspect
