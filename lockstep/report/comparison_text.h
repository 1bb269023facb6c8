#pragma once

#include <string>

#include "lockstep/report/colour.h"
#include "lockstep/report/comparison/comparison.h"

namespace lockstep::report {

/// The whole comparison for a terminal of `width` columns, none of its lines
/// wider: the tables, when what happens, and how to read it.
std::string to_text(const Comparison& comparison, Colour colour,
                    int width = 80);

}  // namespace lockstep::report
