#pragma once

#include <string>

#include "lockstep/base/json.h"
#include "lockstep/inspect/topology.h"

namespace lockstep::inspect {

/// Reads what `nvidia-smi topo -m` wrote, or `lockstep topo --json`. Rows and
/// columns of what is no GPU (NIC0, mlx5_0) and everything behind the matrix
/// are left out. Throws InvalidArgument, naming the line, for a matrix that is
/// not square, has cells that can't be read, or contradicts itself.
Topology parse_topology(const std::string& text);

/// parse_topology() of the file `path`; throws IoError as well.
Topology read_topology(const std::string& path);

nlohmann::ordered_json to_json(const Topology& topology);

}  // namespace lockstep::inspect
