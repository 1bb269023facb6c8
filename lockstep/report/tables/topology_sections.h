#pragma once

#include <vector>

#include "lockstep/inspect/link_speed.h"
#include "lockstep/inspect/topology.h"
#include "lockstep/report/tables/section.h"

namespace lockstep::report {

/// How devices are connected.
Section matrix_section(const inspect::Topology& topology);

/// What was measured, as matrices like that of the topology: bandwidth, in
/// both directions at once, through the host, latency. Empty if nothing was.
std::vector<Section> speed_sections(
    const inspect::Topology& topology,
    const std::vector<inspect::LinkSpeed>& speeds);

}  // namespace lockstep::report
