#pragma once

#include <vector>

#include "lockstep/inspect/link_speed.h"
#include "lockstep/inspect/topology.h"
#include "lockstep/tools/tables/section.h"

namespace lockstep::tools {

/// Returns a matrix of the connections between devices.
Section matrix_section(const inspect::Topology& topology);

/// Returns the measured speeds as matrices like that of the topology:
/// bandwidth, bandwidth in both directions at once, bandwidth through the host,
/// and latency. Empty if nothing was measured.
std::vector<Section> speed_sections(
    const inspect::Topology& topology,
    const std::vector<inspect::LinkSpeed>& speeds);

}  // namespace lockstep::tools
