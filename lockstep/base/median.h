#pragma once

#include <vector>

namespace lockstep {

/// Returns the median of `values`, or 0 if there are none.
double median(std::vector<double> values);

}  // namespace lockstep
