#pragma once

#include <chrono>
#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace lockstep {

/// Options for c10d's backends.
struct BackendOptions {
  c10::intrusive_ptr<c10d::Store> store;
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds timeout{};
  /// A host that the ranks of other hosts can reach. Determines the network
  /// interface to use.
  std::string master_addr;
};

/// Sets environment variables that c10d reads when a process makes its first
/// Gloo group. Must be called while no other thread reads the environment, so
/// before the threads of ranks are started.
void prepare_gloo();

/// Makes c10d's ProcessGroupGloo, bound to the address from which this host
/// reaches `master_addr`, or to the interface named by GLOO_SOCKET_IFNAME.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(
    const BackendOptions& options);

/// Makes c10d's ProcessGroupNCCL. Throws CommError in a build without CUDA.
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(
    const BackendOptions& options);

/// Returns this host's address in the network of `peer` (a name or an address):
/// "127.0.0.1" for the host itself. Sends nothing. Throws CommError if there is
/// no route to `peer`.
std::string local_address_towards(const std::string& peer);

}  // namespace lockstep
