#include "lockstep/tools/charts/line_chart.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "lockstep/tools/charts/axis.h"

namespace lockstep::tools {
namespace {

constexpr double kPlotHeight = 180;
constexpr double kValueLabels = 80;  // column left of the plot
constexpr double kMarkRadius = 3.5;

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  void add(double value) {
    if (!std::isfinite(value)) return;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool is_empty() const { return low > high; }
  /// Returns the position of `value` in the range, from 0 to 1. A value outside
  /// the range is placed at its edge.
  double place(double value) const {
    return high > low ? std::clamp((value - low) / (high - low), 0.0, 1.0)
                      : 0.5;
  }
};

// Points of a curve that fall on the same column of pixels.
struct PixelColumn {
  Range values;
  double sum = 0;
  double x_sum = 0;
  int count = 0;

  double mean() const { return sum / count; }
  double x() const { return x_sum / count; }
};

std::vector<PixelColumn> pixel_columns(const Curve& curve, const Range& xs,
                                       size_t pixels) {
  std::vector<PixelColumn> columns(pixels);
  for (const auto& [x, value] : curve.points) {
    if (!std::isfinite(value)) continue;
    const auto at =
        static_cast<size_t>(xs.place(x) * static_cast<double>(pixels - 1));
    PixelColumn& column = columns[at];
    column.values.add(value);
    column.sum += value;
    column.x_sum += x;
    ++column.count;
  }
  std::erase_if(columns, [](const PixelColumn& c) { return c.count == 0; });
  return columns;
}

// Position and ranges of the axes.
struct Plot {
  Range xs, values;
  double left = 0, width = 0, top = 0;

  double x(double value) const { return left + width * xs.place(value); }
  double y(double value) const {
    return top + kPlotHeight * (1 - values.place(value));
  }
};

void draw_axes(Canvas& canvas, const Plot& plot, const LineChart& chart) {
  for (const double mark :
       marks_between(plot.values.low, plot.values.high, 5)) {
    const double y = plot.y(mark);
    canvas.line(plot.left, y, plot.left + plot.width, y);
    canvas.text(plot.left - 6, y + 4,
                cut_to(chart.format_value(mark), kValueLabels), "small",
                Canvas::Anchor::kEnd);
  }
  const double bottom = plot.top + kPlotHeight;
  canvas.line(plot.left, bottom, plot.left + plot.width, bottom);
  const int most = plot.width > 400 ? 8 : 4;
  const auto marks = marks_between(plot.xs.low, plot.xs.high, most);
  for (const double mark : marks) {
    const double x = plot.x(mark);
    // The first and the last label stay inside the plot.
    const auto anchor = x < plot.left + 20 ? Canvas::Anchor::kStart
                        : x > plot.left + plot.width - 20
                            ? Canvas::Anchor::kEnd
                            : Canvas::Anchor::kMiddle;
    canvas.line(x, bottom, x, bottom + 4);
    canvas.text(x, bottom + 17, fmt::format("{:.6g}", mark), "small", anchor);
  }
  canvas.text(plot.left + plot.width, bottom + 34, chart.x_label, "small",
              Canvas::Anchor::kEnd);
}

void draw_curve(Canvas& canvas, const Plot& plot, const Curve& curve,
                const std::vector<PixelColumn>& columns) {
  Canvas::Points line;
  Canvas::Points band;
  const bool has_band = std::ranges::any_of(
      columns, [](const PixelColumn& c) { return c.count > 1; });
  for (const PixelColumn& column : columns) {
    line.emplace_back(plot.x(column.x()), plot.y(column.mean()));
    band.emplace_back(plot.x(column.x()), plot.y(column.values.high));
  }
  for (auto column = columns.rbegin(); column != columns.rend(); ++column) {
    band.emplace_back(plot.x(column->x()), plot.y(column->values.low));
  }
  if (has_band) canvas.area(band, curve.css_class);
  canvas.curve(line, curve.css_class);
  if (!curve.has_marks) return;
  for (const auto& [x, value] : curve.points) {
    if (!std::isfinite(value)) continue;
    canvas.circle(plot.x(x), plot.y(value), kMarkRadius, curve.css_class,
                  fmt::format("{}, {:.6g}: {:.6g}", curve.label, x, value));
  }
}

}  // namespace

bool LineChart::has_curve() const {
  return std::ranges::any_of(
      curves, [](const Curve& curve) { return curve.points.size() > 1; });
}

void draw_line_chart(Canvas& canvas, const LineChart& chart) {
  std::vector<LegendEntry> legend;
  for (const Curve& curve : chart.curves) {
    legend.push_back(
        {.name = curve.label, .css_class = curve.css_class, .is_line = true});
  }
  const ChartLayout& layout = canvas.layout;
  Plot plot;
  plot.left = layout.margin + kValueLabels;
  plot.width = layout.width - layout.margin - plot.left - 4;
  for (const Curve& curve : chart.curves) {
    for (const auto& [x, value] : curve.points) plot.xs.add(x);
  }
  const auto pixels = static_cast<size_t>(plot.width / 2);
  std::vector<std::vector<PixelColumn>> columns;
  for (const Curve& curve : chart.curves) {
    columns.push_back(pixel_columns(curve, plot.xs, pixels));
    for (const PixelColumn& column : columns.back())
      plot.values.add(column.mean());
  }
  if (plot.xs.is_empty() || plot.values.is_empty()) return;
  if (chart.begins_at_zero) plot.values.add(0);
  const double spare = plot.values.high > plot.values.low
                           ? 0.05 * (plot.values.high - plot.values.low)
                           : std::max(std::abs(plot.values.high) * 0.1, 1e-9);
  plot.values.high += spare;
  if (!chart.begins_at_zero) plot.values.low -= spare;

  draw_legend(canvas, legend);
  plot.top = canvas.y + 6;
  draw_axes(canvas, plot, chart);
  for (size_t i = 0; i < chart.curves.size(); ++i) {
    draw_curve(canvas, plot, chart.curves[i], columns[i]);
  }
  canvas.y = plot.top + kPlotHeight + 42;
}

}  // namespace lockstep::tools
