#include "lockstep/launch/options/bound_cores.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <set>

namespace lockstep::launch {

using Cores = std::vector<int>;

size_t BoundCores::share(int local_rank) const {
  const Cores& own = per_worker[static_cast<size_t>(local_rank)];
  const auto sharing = std::count(per_worker.begin(), per_worker.end(), own);
  return std::max<size_t>(1, own.size() / static_cast<size_t>(sharing));
}

std::vector<int> BoundCores::by_share() const {
  size_t width = std::numeric_limits<size_t>::max();
  for (const Cores& cores : per_worker) {
    const auto sharing =
        std::count(per_worker.begin(), per_worker.end(), cores);
    width = std::min(width, cores.size() / static_cast<size_t>(sharing));
  }
  // Workers that have the same cores take them in turn.
  std::map<Cores, size_t> taken;
  Cores order;
  for (const Cores& cores : per_worker) {
    const auto begin =
        cores.begin() + static_cast<std::ptrdiff_t>(taken[cores] * width);
    order.insert(order.end(), begin,
                 begin + static_cast<std::ptrdiff_t>(width));
    ++taken[cores];
  }
  std::set<int> left_over;
  for (const Cores& cores : per_worker) {
    left_over.insert(cores.begin(), cores.end());
  }
  for (const int core : order) left_over.erase(core);
  order.insert(order.end(), left_over.begin(), left_over.end());
  // The cores that are left over must not make the shares larger.
  const bool fits = width > 0 && order.size() / per_worker.size() == width;
  return fits ? order : Cores();
}

}  // namespace lockstep::launch
