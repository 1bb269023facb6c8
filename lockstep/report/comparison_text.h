#pragma once

#include <string>

#include "lockstep/report/colour.h"
#include "lockstep/report/comparison/comparison.h"

namespace lockstep::report {

/// Returns the whole comparison for a terminal of `width` columns, which no
/// line exceeds: the tables, the time lines, and how to read them.
std::string to_text(const Comparison& comparison, Colour colour,
                    int width = 80);

}  // namespace lockstep::report
