#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::report {

/// `text` with &, <, > and quotes as entities, and characters that a document
/// must not hold replaced: for HTML and SVG.
std::string escaped(std::string_view text);

/// Where the parts of a chart are, in pixels. A page has each chart twice, for
/// a wide and for a narrow screen: a chart that is made smaller as a whole
/// would have small letters.
struct ChartLayout {
  double width = 0;
  double margin = 0;
  double labels = 0;  ///< column left of the bars; 0: labels are above them
  double values = 0;  ///< column right of them

  bool has_labels_above() const { return labels <= 0; }
  double bar_x() const { return margin + labels; }
  double bars() const { return width - 2 * margin - labels - values; }
};

inline constexpr ChartLayout kWideLayout{
    .width = 680, .margin = 4, .labels = 150, .values = 96};
/// For a telephone: 390 pixels and less.
inline constexpr ChartLayout kNarrowLayout{
    .width = 328, .margin = 2, .labels = 0, .values = 84};
/// Of a file that stands alone.
inline constexpr ChartLayout kPictureLayout{
    .width = 760, .margin = 16, .labels = 150, .values = 100};

inline constexpr double kBarHeight = 14;

/// What `text` takes at most, in pixels, in the letters of charts: whatever the
/// font is, which a file can't know.
double text_width(std::string_view text);
/// `text`, cut to `width` pixels.
std::string cut_to(const std::string& text, double width);

/// SVG being drawn from the top down, in pixels.
class Canvas {
 public:
  explicit Canvas(const ChartLayout& chart_layout) : layout(chart_layout) {}

  enum class Anchor { kStart, kMiddle, kEnd };
  /// `x`, `top`: of the baseline.
  void text(double x, double top, const std::string& content,
            const std::string& css_class = "", Anchor anchor = Anchor::kStart);
  /// `title` shows when the pointer rests on it.
  void rectangle(double x, double y, double width, double height,
                 const std::string& css_class, const std::string& title = "");
  void line(double x1, double y1, double x2, double y2,
            const std::string& css_class = "rule");
  using Points = std::vector<std::pair<double, double>>;
  void curve(const Points& points, const std::string& css_class);
  /// Filled.
  void area(const Points& points, const std::string& css_class);
  void circle(double x, double y, double radius, const std::string& css_class,
              const std::string& title = "");

  const ChartLayout layout;
  /// Where the next chart begins.
  double y = 0;

  /// `id`: of the element, unlike any other of the page; `description`: what a
  /// reader who can't see the chart is told.
  std::string finish(const std::string& id, const std::string& title,
                     const std::string& description) const;
  /// A whole file, with `style`, CSS.
  std::string finish_file(const std::string& title,
                          const std::string& style) const;

 private:
  std::string head(const std::string& attributes) const;

  std::string body_;
};

/// The name of a row at canvas.y, left of its bars or above them; then
/// canvas.y is where they are.
void label_row(Canvas& canvas, const std::string& label);
void end_row(Canvas& canvas);

/// Of a colour: what it stands for, and its CSS class.
struct LegendEntry {
  std::string name;
  std::string css_class;
  bool is_line = false;
};
/// As many lines as they need.
void draw_legend(Canvas& canvas, const std::vector<LegendEntry>& entries);

}  // namespace lockstep::report
