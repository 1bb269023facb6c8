#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/tools/charts/canvas.h"

namespace lockstep::tools {

/// Values over steps or seconds.
struct Curve {
  std::string label;
  std::string css_class;    ///< run_class(), or a class that looks like it
  Canvas::Points points{};  ///< sorted by x
  bool has_marks = false;   ///< draw a circle at each point, if there are few
};

struct LineChart {
  std::string x_label;  ///< "step"
  std::vector<Curve> curves{};
  bool begins_at_zero = false;  ///< whether the axis of values begins at 0
  std::function<std::string(double)> format_value{};

  /// Returns true if there is something to draw: a curve with at least two
  /// points.
  bool has_curve() const;
};

/// Draws a line chart. A curve with more points than pixels is drawn as the
/// mean of the points on each pixel, with a band behind it from the smallest to
/// the largest. Values that are not finite are left out.
void draw_line_chart(Canvas& canvas, const LineChart& chart);

}  // namespace lockstep::tools
