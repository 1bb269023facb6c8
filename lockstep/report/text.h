#pragma once

#include <string>

#include "lockstep/report/comparison.h"

namespace lockstep::report {

enum class Colour { kNever, kAlways };

/// Colour where `fd` is a terminal and NO_COLOR is not set.
Colour colour_of(int fd);

/// The whole comparison for a terminal of `width` columns: the tables, when
/// what happens, and how to read it.
std::string to_text(const Comparison& comparison, Colour colour,
                    int width = 80);

}  // namespace lockstep::report
