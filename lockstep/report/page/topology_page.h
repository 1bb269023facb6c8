#pragma once

#include <string>
#include <vector>

#include "lockstep/inspect/link_speed.h"
#include "lockstep/inspect/topology.h"

namespace lockstep::report {

/// Returns the matrix, its legend and the measured speeds as one page.
std::string topology_page(const inspect::Topology& topology,
                          const std::vector<inspect::LinkSpeed>& speeds);

}  // namespace lockstep::report
