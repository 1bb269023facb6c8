#pragma once

#include <string>
#include <vector>

#include "lockstep/monitor/rank_status.h"

namespace lockstep::monitor {

/// Returns the curve of `points` in `height` rows of `width` characters, from
/// the top. A Braille character shows two by four dots; ASCII uses '*'. Returns
/// nothing for fewer than two points.
std::vector<std::string> draw_curve(const std::vector<LossPoint>& points,
                                    int width, int height, bool is_utf8);

}  // namespace lockstep::monitor
