#pragma once

namespace lockstep::report {

/// Whether text for a terminal has colours.
enum class Colour { kNever, kAlways };

/// As wants_colour() says.
Colour colour_of(int fd);

}  // namespace lockstep::report
