#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "lockstep/base/env.h"
#include "lockstep/comm/backends.h"
#include "lockstep/comm/network.h"

namespace lockstep {

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(
    const BackendOptions& options) {
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
