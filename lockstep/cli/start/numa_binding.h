#pragma once

#include <string>
#include <vector>

namespace lockstep::cli {

/// Returns the cores of each worker, by local rank, out of the `allowed` ones:
/// those near its GPU. `mode` is a value of torchrun's --numa-binding: node,
/// socket, exclusive or core-complex. `gpus` has the PCI addresses of the GPUs.
/// Without GPUs, workers are distributed evenly over the NUMA nodes, and count
/// as GPUs of their node. Throws LaunchError.
std::vector<std::vector<int>> bind_to_numa(const std::string& mode, int workers,
                                           const std::vector<std::string>& gpus,
                                           std::vector<int> allowed);

}  // namespace lockstep::cli
