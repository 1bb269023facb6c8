#include <cstdlib>
#include <mutex>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "lockstep/base/blocked_sigpipe.h"
#include "lockstep/base/env.h"
#include "lockstep/comm/backends/backends.h"
#include "lockstep/comm/backends/network.h"

namespace lockstep {

// c10d keeps a record of all of a process's Gloo operations, and adds to it
// outside of its lock: groups of several threads (ranks of spawn(), or a rank
// that sends while its queue works) corrupt it. Only the environment turns it
// off: the recorder itself is hidden in libtorch_cpu.
void prepare_gloo() {
  static std::once_flag once;
  std::call_once(
      once, [] { ::setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/0); });
}

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(
    const BackendOptions& options) {
  prepare_gloo();
  // Also for the threads that Gloo starts here, which write to sockets.
  const BlockedSigpipe blocked;
  using Gloo = c10d::ProcessGroupGloo;
  auto gloo_options = Gloo::Options::create(options.timeout);
  const auto interface = env("GLOO_SOCKET_IFNAME");
  gloo_options->devices.push_back(
      interface ? Gloo::createDeviceForInterface(*interface)
                : Gloo::createDeviceForHostname(
                      local_address_towards(options.master_addr)));
  return c10::make_intrusive<Gloo>(options.store, options.rank, options.size,
                                   gloo_options);
}

}  // namespace lockstep
