#pragma once

#include <span>
#include <string>
#include <vector>

#include "lockstep/device/device.h"
#include "lockstep/inspect/topology.h"

namespace lockstep::inspect {

/// Returns how `devices` of one kind are connected. For slices it depends on
/// the nearest cache or NUMA node that contains the cores of both. For GPUs of
/// NVIDIA the driver reports it; throws DeviceError if it does not. For other
/// accelerators it is not known: add_measured_connections() tells more.
Topology device_topology(std::span<const Device> devices);

/// Returns the same for slices with these cores (in order) on a synthetic host
/// of hwloc: "numa:2 l3:1 core:4 pu:2". For tests. Throws InvalidArgument for a
/// description that hwloc can't read.
Topology synthetic_topology(const std::string& description,
                            const std::vector<std::vector<int>>& cores);

}  // namespace lockstep::inspect
