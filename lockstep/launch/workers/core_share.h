#pragma once

#include <vector>

namespace lockstep::launch {

/// The cores of one of `workers` workers: equal parts of `cores` in order of
/// local rank, so that every worker has as many threads; what is left over
/// stays idle. With more workers than cores each gets one, in turns.
std::vector<int> core_share(const std::vector<int>& cores, int local_rank,
                            int workers);

}  // namespace lockstep::launch
