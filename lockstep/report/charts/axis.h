#pragma once

#include <string>
#include <vector>

namespace lockstep::report {

/// Where to mark an axis from `low` to `high` that has room for `most` labels:
/// multiples of 1, 2 or 5 times a power of ten. At least one.
std::vector<double> marks_between(double low, double high, int most);

/// "0", "2.5", "10": a mark of a time axis, in ms.
std::string mark_label(double seconds);

}  // namespace lockstep::report
