#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::report {

/// `text` with &, <, > and quotes as entities: for HTML and SVG.
std::string escaped(std::string_view text);

/// SVG being drawn from the top down, in pixels.
class Canvas {
 public:
  explicit Canvas(int width) : width_(width) {}

  enum class Anchor { kStart, kEnd };
  /// `x`, `y`: of the baseline's start, or its end.
  void text(double x, double y, const std::string& content,
            const std::string& css_class = "", Anchor anchor = Anchor::kStart);
  /// `title` shows when the pointer rests on it.
  void rectangle(double x, double y, double width, double height,
                 const std::string& css_class, const std::string& title = "");
  void line(double x1, double y1, double x2, double y2);

  int width() const { return width_; }
  /// Where the next chart begins.
  double y = 0;

  /// `style`: CSS, for a file that stands alone.
  std::string finish(const std::string& label,
                     const std::string& style = "") const;

 private:
  int width_;
  std::string body_;
};

// What charts have in common: where their parts are, in pixels.
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
