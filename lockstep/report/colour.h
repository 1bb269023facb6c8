#pragma once

namespace lockstep::report {

/// Whether text for a terminal has colours.
enum class Colour { kNever, kAlways };

/// Colour where `fd` is a terminal and NO_COLOR is not set.
Colour colour_of(int fd);

}  // namespace lockstep::report
