#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::tools {

/// Returns `text` for HTML and SVG: &, <, > and quotes become entities, and
/// characters that a document must not contain are replaced.
std::string escaped(std::string_view text);

/// Layout of a chart, in pixels. A page contains each chart twice, for a wide
/// and for a narrow screen, because scaling a whole chart down would make its
/// letters small.
struct ChartLayout {
  double width = 0;
  double margin = 0;
  double labels = 0;  ///< column left of the bars; 0: labels are above them
  double values = 0;  ///< column right of the bars

  bool has_labels_above() const { return labels <= 0; }
  double bar_x() const { return margin + labels; }
  double bars() const { return width - 2 * margin - labels - values; }
};

inline constexpr ChartLayout kWideLayout{
    .width = 680, .margin = 4, .labels = 150, .values = 96};
/// Layout for a phone: 390 pixels and less.
inline constexpr ChartLayout kNarrowLayout{
    .width = 328, .margin = 2, .labels = 0, .values = 84};
/// Layout of a standalone file.
inline constexpr ChartLayout kPictureLayout{
    .width = 760, .margin = 16, .labels = 150, .values = 100};
/// Layout of a standalone file for a phone.
inline constexpr ChartLayout kNarrowPictureLayout{
    .width = 380, .margin = 10, .labels = 0, .values = 84};

inline constexpr double kBarHeight = 14;

/// Returns the largest width of `text` in pixels. It assumes the widest usual
/// font, because a file can't know which font is used.
double text_width(std::string_view text);
/// Returns `text`, shortened to `width` pixels.
std::string cut_to(const std::string& text, double width);

/// An SVG drawing that is built from the top down, in pixels.
class Canvas {
 public:
  explicit Canvas(const ChartLayout& chart_layout) : layout(chart_layout) {}

  enum class Anchor { kStart, kMiddle, kEnd };
  /// `x` and `top` are the position of the baseline.
  void text(double x, double top, const std::string& content,
            const std::string& css_class = "", Anchor anchor = Anchor::kStart);
  /// `title` is shown when the pointer rests on the rectangle.
  void rectangle(double x, double y, double width, double height,
                 const std::string& css_class, const std::string& title = "");
  void line(double x1, double y1, double x2, double y2,
            const std::string& css_class = "rule");
  using Points = std::vector<std::pair<double, double>>;
  void curve(const Points& points, const std::string& css_class);
  /// Draws a filled area.
  void area(const Points& points, const std::string& css_class);
  void circle(double x, double y, double radius, const std::string& css_class,
              const std::string& title = "");

  const ChartLayout layout;
  /// Top of the next chart.
  double y = 0;

  /// Returns the drawing as an SVG element. `id` must be unique on the page.
  /// `description` is the text for readers who can't see the chart.
  std::string finish(const std::string& id, const std::string& title,
                     const std::string& description) const;
  /// Returns the drawing as a whole file with the CSS `style`.
  std::string finish_file(const std::string& title,
                          const std::string& style) const;

 private:
  std::string head(const std::string& attributes) const;

  std::string body_;
};

/// Draws the name of a row at canvas.y, left of its bars or above them, and
/// moves canvas.y to the bars. Cuts `label` if there is no room for it and
/// `ending`.
void label_row(Canvas& canvas, const std::string& label,
               const std::string& ending = "");
void end_row(Canvas& canvas);

/// A colour in the legend: its meaning and its CSS class.
struct LegendEntry {
  std::string name;
  std::string css_class;
  bool is_line = false;
};
/// Draws the legend on as many lines as it needs.
void draw_legend(Canvas& canvas, const std::vector<LegendEntry>& entries);

/// Returns the CSS class of run `index`, such as "run0". It is the same in all
/// charts of a page. Shapes and lines of the class have the run's colour, and
/// lines also have the run's own dash. After six runs, or curves of a chart,
/// the colours start again with the first one.
std::string run_class(size_t index);

/// Returns the colours of charts, light and dark, as CSS. All have a contrast
/// to the paper of at least 3 to 1, and letters of at least 4.5 to 1, as WCAG 2
/// requires.
std::string style_sheet();

}  // namespace lockstep::tools
