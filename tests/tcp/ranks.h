#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/tcp/listener.h"
#include "lockstep/tcp/mesh.h"
#include "tests/shm/p2p.h"

namespace lockstep::tcp {

using shm::Awaited;
using shm::expect_parts;
using shm::Kind;
using shm::Message;
using shm::noise;
using shm::P2pRank;
using shm::P2pTask;
using shm::require;
using shm::run_p2p;
using shm::sleep_on;
using shm::TwoRanks;

/// Two plain ends of a TCP connection over loopback.
std::pair<store::SecureSocket, store::SecureSocket> connected_pair();

/// "rank 0 (host a)", "rank 1 (host a)" and so on.
std::vector<std::string> rank_names(int ranks);

/// As run_p2p() for threads, but connects them by Listener.
std::vector<std::string> run_listening_p2p(int ranks, Listener::Data data,
                                           const P2pTask& task);

using MeshTask = std::function<void(Mesh&)>;

/// Connects `ranks` ranks, each in a thread, and runs `task` as each of them.
/// Returns "" for a rank that succeeded, and otherwise the message of its
/// error. A rank's connections close when its task is done.
std::vector<std::string> run_mesh(int ranks, const MeshTask& task,
                                  Mesh::Hosts hosts = Mesh::Hosts::kOne,
                                  Listener::Data data = Listener::Data::kPlain);

}  // namespace lockstep::tcp
