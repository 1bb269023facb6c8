#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/inspect/topology.h"

namespace lockstep::inspect {

/// Returns the topology of the GPUs with these UUIDs, in this order, named
/// GPU0, GPU1 and so on, as NVIDIA's management library reports it. Returns
/// nothing if there is no such library or no driver. Throws DeviceError if
/// there is no such GPU. `root` is the folder that contains /sys.
std::optional<Topology> nvml_topology(
    const std::vector<std::string>& uuids,
    const std::string& library = "libnvidia-ml.so.1",
    const std::string& root = "/");

}  // namespace lockstep::inspect
