#pragma once

#include <cstddef>
#include <vector>

namespace lockstep::launch {

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

}  // namespace lockstep::launch
