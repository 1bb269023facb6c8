#pragma once

#include <vector>

namespace lockstep {

/// The median; 0 for no values.
double median(std::vector<double> values);

}  // namespace lockstep
