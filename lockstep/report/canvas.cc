#include "lockstep/report/canvas.h"

#include <fmt/format.h>

namespace lockstep::report {

std::string escaped(std::string_view text) {
  std::string result;
  for (const char letter : text) {
    switch (letter) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      case '\'':
        result += "&#39;";
        break;
      default:
        result += letter;
    }
  }
  return result;
}

void Canvas::text(double x, double top, const std::string& content,
                  const std::string& css_class, Anchor anchor) {
  body_ += fmt::format(
      "<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"{}\"{}>{}</text>\n", x, top,
      css_class, anchor == Anchor::kEnd ? " text-anchor=\"end\"" : "",
      escaped(content));
}

void Canvas::rectangle(double x, double top, double width, double height,
                       const std::string& css_class, const std::string& title) {
  body_ += fmt::format(
      "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" "
      "rx=\"2\" class=\"{}\"><title>{}</title></rect>\n",
      x, top, width, height, css_class, escaped(title));
}

void Canvas::line(double x1, double y1, double x2, double y2) {
  body_ += fmt::format(
      "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" "
      "class=\"rule\"/>\n",
      x1, y1, x2, y2);
}

std::string Canvas::finish(const std::string& label,
                           const std::string& style) const {
  std::string head = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1:.0f}\" "
      "width=\"{0}\" height=\"{1:.0f}\" role=\"img\" aria-label=\"{2}\">\n",
      width_, y, escaped(label));
  if (!style.empty()) head += "<style>\n" + style + "</style>\n";
  return head + body_ + "</svg>\n";
}

void label_row(Canvas& canvas, const std::string& label) {
  canvas.text(kBarX - 10, canvas.y + kBarHeight - 2, label, "",
              Canvas::Anchor::kEnd);
}

void draw_legend(Canvas& canvas, const std::vector<LegendEntry>& entries) {
  double x = kBarX;
  for (const auto& [name, css_class] : entries) {
    canvas.rectangle(x, canvas.y, 10, 10, css_class, name);
    canvas.text(x + 14, canvas.y + 9, name, "small");
    x += 26 + 7.2 * static_cast<double>(name.size());
  }
  canvas.y += kRow;
}

}  // namespace lockstep::report
