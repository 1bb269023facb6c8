#include "lockstep/base/core_share.h"

namespace lockstep {

std::vector<int> core_share(const std::vector<int>& cores, size_t index,
                            size_t count) {
  const size_t width = cores.size() / count;
  if (width == 0) return {cores[index % cores.size()]};
  const auto begin = cores.begin() + static_cast<std::ptrdiff_t>(index * width);
  return {begin, begin + static_cast<std::ptrdiff_t>(width)};
}

}  // namespace lockstep
