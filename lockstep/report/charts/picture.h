#pragma once

#include <string>

#include "lockstep/report/comparison/comparison.h"

namespace lockstep::report {

/// Returns the set-up table and the charts as one picture: a whole .svg file.
std::string picture(const Comparison& comparison);

}  // namespace lockstep::report
