#pragma once

namespace lockstep::report {

/// Whether text for a terminal has colours.
enum class Colour { kNever, kAlways };

/// Returns kAlways if wants_colour() is true for `fd`.
Colour colour_of(int fd);

}  // namespace lockstep::report
