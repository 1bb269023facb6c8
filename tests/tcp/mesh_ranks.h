#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/tcp/mesh.h"

namespace lockstep::tcp {

using MeshTask = std::function<void(Mesh&)>;

/// Connects `ranks` ranks, each in a thread, and runs `task` as each of them.
/// Returns "" for a rank that succeeded, and otherwise the message of its
/// error. A rank's connections close when its task is done.
std::vector<std::string> run_mesh(int ranks, const MeshTask& task,
                                  Mesh::Hosts hosts = Mesh::Hosts::kOne);

}  // namespace lockstep::tcp
