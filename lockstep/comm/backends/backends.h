#pragma once

#include <chrono>
#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace lockstep {

/// What the backends of c10d are made from.
struct BackendOptions {
  c10::intrusive_ptr<c10d::Store> store;
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds timeout{};
  /// A host that the ranks of other hosts can reach. The network towards it is
  /// used.
  std::string master_addr;
};

/// Sets variables of the environment that c10d reads when a process makes its
/// first Gloo group. Must be called while no other thread reads the
/// environment, so before the threads of ranks are started.
void prepare_gloo();

/// c10d's ProcessGroupGloo, bound to the address from which this host reaches
/// `master_addr`, or to the interface that GLOO_SOCKET_IFNAME names.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(
    const BackendOptions& options);

/// c10d's ProcessGroupNCCL. Throws CommError in a build without CUDA.
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(
    const BackendOptions& options);

/// The address that this host has in the network in which `peer` (a name or an
/// address) is: "127.0.0.1" for the host itself. Nothing is sent. Throws
/// CommError if there is no way to `peer`.
std::string local_address_towards(const std::string& peer);

}  // namespace lockstep
