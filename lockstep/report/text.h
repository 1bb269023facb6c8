#pragma once

#include <string>

#include "lockstep/report/comparison.h"

namespace lockstep::report {

enum class Colour { kNever, kAlways };

/// Colour where `fd` is a terminal and NO_COLOR is not set.
Colour colour_of(int fd);

/// The whole comparison for the terminal: the tables and how to read them.
std::string to_text(const Comparison& comparison, Colour colour);

}  // namespace lockstep::report
