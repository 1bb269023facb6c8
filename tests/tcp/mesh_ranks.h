#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/tcp/mesh.h"

namespace lockstep::tcp {

using MeshTask = std::function<void(Mesh&)>;

/// Connects `ranks` ranks, each a thread, and runs `task` as each of them: ""
/// for a rank that ended well, else its error's message. The rank's connections
/// close when its task is over.
std::vector<std::string> run_mesh(int ranks, const MeshTask& task,
                                  Mesh::Hosts hosts = Mesh::Hosts::kOne);

}  // namespace lockstep::tcp
