#pragma once

#include <cstddef>
#include <vector>

namespace lockstep {

/// The cores of share `index` of `count`: equal parts of `cores`, in order, so
/// that every share has as many threads as the others. 3 cores in 2 shares
/// leave one core idle. With more shares than cores, each has one core, in
/// turns.
std::vector<int> core_share(const std::vector<int>& cores, size_t index,
                            size_t count);

}  // namespace lockstep
