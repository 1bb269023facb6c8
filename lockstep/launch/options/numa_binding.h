#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::launch {

/// Cores near a worker's GPU, as torch/numa/binding.py defines them.
enum class NumaBinding {
  kNode,        ///< all cores of the GPU's NUMA node
  kSocket,      ///< all cores of the node's socket
  kExclusive,   ///< an equal part of the node's cores for each of its GPUs
  kCoreComplex  ///< the cores that share a last-level cache, in turn
};

/// Cores to which the workers are bound.
struct BoundCores {
  std::vector<std::vector<int>> per_worker;  ///< by local rank, each sorted

  /// Returns the number of cores of a worker if it shares its cores equally
  /// with the workers that have the same ones. At least 1.
  size_t share(int local_rank) const;

  /// Returns the cores in the order in which core_share() gives each worker
  /// some of its own. Returns nothing if there is no such order.
  std::vector<int> by_share() const;
};

/// Returns the cores for `workers` workers, out of the `allowed` ones. `gpus`
/// has the PCI addresses of the GPUs, and the worker of local rank k uses GPU
/// k. Without GPUs, workers are distributed evenly over the NUMA nodes, in
/// order of local rank, and count as GPUs of their node. `root` is the folder
/// that contains /sys; tests pass their own. Throws LaunchError.
BoundCores bind_to_numa(NumaBinding binding, int workers,
                        const std::vector<std::string>& gpus,
                        const std::vector<int>& allowed,
                        const std::filesystem::path& root = "/");

}  // namespace lockstep::launch
