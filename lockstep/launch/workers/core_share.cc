#include "lockstep/launch/workers/core_share.h"

#include <cstddef>

namespace lockstep::launch {

std::vector<int> core_share(const std::vector<int>& cores, int local_rank,
                            int workers) {
  const auto rank = static_cast<size_t>(local_rank);
  const size_t part = cores.size() / static_cast<size_t>(workers);
  if (part == 0) return {cores[rank % cores.size()]};
  const auto begin = cores.begin() + static_cast<std::ptrdiff_t>(rank * part);
  return {begin, begin + static_cast<std::ptrdiff_t>(part)};
}

}  // namespace lockstep::launch
