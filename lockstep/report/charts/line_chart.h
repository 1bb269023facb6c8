#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/report/charts/canvas.h"

namespace lockstep::report {

/// Values over steps or seconds.
struct Curve {
  std::string label;
  std::string css_class;   ///< run_class(), or one that looks like it
  Canvas::Points points;   ///< by x
  bool has_marks = false;  ///< a circle at each point: there are few
};

struct LineChart {
  std::string x_label;  ///< "step"
  std::vector<Curve> curves;
  bool begins_at_zero = false;  ///< the axis of values
  std::function<std::string(double)> format_value;

  /// Whether there is something to draw: a curve of two points.
  bool has_curve() const;
};

/// Of more points than pixels, the mean of those on a pixel, and behind it, as
/// a band, from the least of them to the greatest. What is not finite is left
/// out.
void draw_line_chart(Canvas& canvas, const LineChart& chart);

}  // namespace lockstep::report
