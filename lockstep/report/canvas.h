#pragma once

#include <string>

namespace lockstep::report {

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

}  // namespace lockstep::report
