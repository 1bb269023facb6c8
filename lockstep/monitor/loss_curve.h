#pragma once

#include <string>
#include <vector>

#include "lockstep/monitor/rank_status.h"

namespace lockstep::monitor {

/// The curve of `points` in `height` rows of `width` characters, from the top:
/// two by four dots in a character of Braille, or '*' in ASCII. At least two
/// points, else it is empty.
std::vector<std::string> draw_curve(const std::vector<LossPoint>& points,
                                    int width, int height, bool is_utf8);

}  // namespace lockstep::monitor
