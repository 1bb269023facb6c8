#pragma once

#include <string>

#include "lockstep/base/json.h"
#include "lockstep/inspect/topology.h"

namespace lockstep::inspect {

/// Parses the output of `nvidia-smi topo -m` or `lockstep topo --json`. Ignores
/// rows and columns of other devices (NIC0, mlx5_0) and everything after the
/// matrix. Throws InvalidArgument, naming the line, for a matrix that is not
/// square, has cells that can't be read, or contradicts itself.
Topology parse_topology(const std::string& text);

/// Parses the file at `path` with parse_topology(). Also throws IoError.
Topology read_topology(const std::string& path);

nlohmann::ordered_json to_json(const Topology& topology);

}  // namespace lockstep::inspect
