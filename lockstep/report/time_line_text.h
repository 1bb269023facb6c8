#pragma once

#include <string>

#include "lockstep/report/colour.h"
#include "lockstep/report/comparison/time_line.h"

namespace lockstep::report {

/// A row of characters for each lane. For a terminal of `width` columns;
/// characters as the locale has them.
std::string to_text(const TimeLine& line, int width, Colour colour);

}  // namespace lockstep::report
