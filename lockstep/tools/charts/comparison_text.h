#pragma once

#include <string>

#include "lockstep/tools/comparison/comparison.h"
#include "lockstep/tools/comparison/time_line.h"

namespace lockstep::tools {

/// Whether text for a terminal has colours.
enum class Colour { kNever, kAlways };

/// Amount of text that is printed.
enum class Details {
  kNone,  ///< times, devices, and what they say
  kAll,   ///< also the phases, shares of the limit and time lines
};

/// Returns the comparison for a terminal of `width` columns, which no line
/// exceeds.
std::string to_text(const Comparison& comparison, Details details,
                    Colour colour, int width = 80);

/// Returns a row of characters for each lane, for a terminal of `width`
/// columns. The locale determines the characters.
std::string to_text(const TimeLine& line, int width, Colour colour);

}  // namespace lockstep::tools
