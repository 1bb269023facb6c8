#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lockstep/report/canvas.h"

// What charts have in common: where their parts are, in pixels.
namespace lockstep::report {

inline constexpr int kChartWidth = 760;
inline constexpr double kMargin = 16;
inline constexpr double kLabels = 150;  // columns left of the bars
inline constexpr double kValues = 100;  // columns right of them
inline constexpr double kBars = kChartWidth - 2 * kMargin - kLabels - kValues;
inline constexpr double kRow = 24;
inline constexpr double kBarHeight = 14;
inline constexpr double kBarX = kMargin + kLabels;

/// The name of the row at canvas.y, left of its bars.
void label_row(Canvas& canvas, const std::string& label);

/// Of a colour: what it stands for, and its CSS class.
using LegendEntry = std::pair<std::string, std::string>;
void draw_legend(Canvas& canvas, const std::vector<LegendEntry>& entries);

}  // namespace lockstep::report
