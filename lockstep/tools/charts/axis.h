#pragma once

#include <string>
#include <vector>

namespace lockstep::tools {

/// Returns the marks of an axis from `low` to `high` that has room for `most`
/// labels: multiples of 1, 2 or 5 times a power of ten. There is at least one.
std::vector<double> marks_between(double low, double high, int most);

/// Returns the label of a mark on a time axis in ms: "0", "2.5", "10".
std::string mark_label(double seconds);

}  // namespace lockstep::tools
