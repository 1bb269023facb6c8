#pragma once

#include <string>
#include <vector>

#include "lockstep/inspect/link_speed.h"
#include "lockstep/inspect/topology.h"
#include "lockstep/report/sections.h"

namespace lockstep::report {

/// What was measured, as matrices like that of the topology: bandwidth, in
/// both directions at once, through the host, latency. Empty if nothing was.
std::vector<Section> speed_sections(
    const inspect::Topology& topology,
    const std::vector<inspect::LinkSpeed>& speeds);

/// Matrix, legend and what was measured as one page.
std::string topology_page(const inspect::Topology& topology,
                          const std::vector<inspect::LinkSpeed>& speeds);

}  // namespace lockstep::report
