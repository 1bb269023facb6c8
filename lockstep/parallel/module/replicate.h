#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

#include "lockstep/device/device.h"
#include "lockstep/parallel/module/module_handle.h"

namespace lockstep {

/// Moves a module's parameters and buffers to a GPU, or into the memory of a
/// slice of the host. Does not use the calling thread's random stream.
void to(torch::nn::Module& module, const Device& device);

namespace detail {

/// Throws InvalidArgument unless every parameter and buffer is on `device`
/// (host memory counts as being on every slice). The error names the first one
/// that is not, where it is, and the call that fixes it.
void check_on_device(const ModuleHandle& module, const Device& device);

}  // namespace detail

/// Returns copies of `original`, one on each of `devices`, each with its own
/// memory, as torch.nn.parallel.replicate does.
template <class M>
std::vector<std::shared_ptr<M>> replicate(const std::shared_ptr<M>& original,
                                          const std::vector<Device>& devices) {
  detail::check_on_device(handle_of(original), devices.at(0));
  std::vector<std::shared_ptr<M>> replicas;
  for (const Device& device : devices) {
    auto copy = clone_as(*original);
    to(*copy, device);
    replicas.push_back(std::move(copy));
  }
  return replicas;
}

}  // namespace lockstep
