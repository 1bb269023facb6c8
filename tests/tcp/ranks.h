#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/tcp/listener.h"
#include "lockstep/tcp/mesh.h"
#include "tests/shm/ranks.h"

namespace lockstep::tcp {

using shm::Kind;
using shm::require;

/// "rank 0 (host a)", "rank 1 (host a)" and so on.
std::vector<std::string> rank_names(int ranks);

using MeshTask = std::function<void(Mesh&)>;

/// Connects `ranks` ranks, each in a thread, and runs `task` as each of them.
/// Returns "" for a rank that succeeded, and otherwise the message of its
/// error. A rank's connections close when its task is done.
std::vector<std::string> run_mesh(int ranks, const MeshTask& task,
                                  Mesh::Hosts hosts = Mesh::Hosts::kOne,
                                  Data data = Data::kPlain);

}  // namespace lockstep::tcp
