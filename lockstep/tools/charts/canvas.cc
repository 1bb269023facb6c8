#include "lockstep/tools/charts/canvas.h"

#include <map>

#include <fmt/format.h>

namespace lockstep::tools {
namespace {

constexpr size_t kRunColours = 6;

constexpr const char* kLight = R"(
  --ink: #1f2328; --muted: #59636e; --paper: #ffffff; --rule: #d1d9e0;
  --link: #0a58ca; --code: #f3f5f7;
  --run0: #0072b2; --run1: #c2410c; --run2: #007a5a; --run3: #a23b78;
  --run4: #8a5a00; --run5: #4b5563;
  --scatter: #a86a00; --replicate: #c2410c; --forward: #3d85c6;
  --gather: #b8457a; --backward: #1f4e8c; --reduce: #8b46b0;
  --update: #2f7d4f; --wait: #8b949e;
)";

constexpr const char* kDark = R"(
  --ink: #e6edf3; --muted: #9198a1; --paper: #0d1117; --rule: #3d444d;
  --link: #79b8ff; --code: #161b22;
  --run0: #56b4e9; --run1: #ff9e64; --run2: #2fd3a5; --run3: #e89ac7;
  --run4: #f0c04a; --run5: #b6bec9;
  --scatter: #efb13e; --replicate: #f08a4b; --forward: #8cc2f0;
  --gather: #e58bb3; --backward: #4f8fd6; --reduce: #bd86d8;
  --update: #63b987; --wait: #7d8590;
)";

// Phases that compute are blue and phases that move data have warm colours, so
// the overhead is visible before a label is read.
constexpr const char* kCharts = R"(
svg text { fill: var(--ink); font: 13px system-ui, sans-serif;
  font-variant-numeric: tabular-nums; }
svg .title { font-weight: 600; font-size: 14px; }
svg .head, svg .small, svg .value, svg .note { fill: var(--muted); }
svg .small, svg .note { font-size: 12px; }
svg .above { paint-order: stroke; stroke: var(--paper); stroke-width: 4px; }
svg .rule { stroke: var(--rule); }
svg .mark { stroke: var(--ink); stroke-width: 1.5; }
svg .curve { fill: none; stroke-width: 2; stroke-linejoin: round; }
svg .thin { stroke-width: 1.5; }
svg .area { stroke: none; fill-opacity: 0.2; }
svg .run0 { fill: var(--run0); } svg .run1 { fill: var(--run1); }
svg .run2 { fill: var(--run2); } svg .run3 { fill: var(--run3); }
svg .run4 { fill: var(--run4); } svg .run5 { fill: var(--run5); }
svg .curve.run0 { fill: none; stroke: var(--run0); }
svg .curve.run1 { fill: none; stroke: var(--run1); stroke-dasharray: 7 3; }
svg .curve.run2 { fill: none; stroke: var(--run2); stroke-dasharray: 2 3; }
svg .curve.run3 { fill: none; stroke: var(--run3);
  stroke-dasharray: 9 3 2 3; }
svg .curve.run4 { fill: none; stroke: var(--run4); stroke-dasharray: 12 4; }
svg .curve.run5 { fill: none; stroke: var(--run5); stroke-dasharray: 4 4; }
svg .shared { fill: var(--muted); }
svg .scatter { fill: var(--scatter); }
svg .replicate { fill: var(--replicate); }
svg .forward { fill: var(--forward); } svg .gather { fill: var(--gather); }
svg .backward { fill: var(--backward); } svg .reduce { fill: var(--reduce); }
svg .update { fill: var(--update); } svg .wait { fill: var(--wait); }
svg .other { fill: var(--wait); }
)";

// Returns the width of a letter at 13 pixels, in the widest of the usual fonts.
double letter_width(char first_byte) {
  constexpr std::string_view kNarrow = " .,:;'|!ijlI()[]/-frt";
  constexpr std::string_view kWide = "mwMW@%<>=+~&#";
  const auto code = static_cast<unsigned char>(first_byte);
  if (code >= 0x80) return 13.5;
  if (kNarrow.find(first_byte) != std::string_view::npos) return 5.6;
  if (kWide.find(first_byte) != std::string_view::npos) return 13;
  return code >= 'A' && code <= 'Z' ? 10 : 8.4;
}

// Returns true for the first byte of a UTF-8 character.
bool begins_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xc0) != 0x80;
}

bool is_forbidden(char letter) {
  const auto code = static_cast<unsigned char>(letter);
  return (code < 0x20 && letter != '\n' && letter != '\t') || code == 0x7f;
}

std::string path_of(const Canvas::Points& points) {
  std::string path;
  for (const auto& [x, y] : points) {
    path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", x, y);
  }
  return path;
}

}  // namespace

std::string escaped(std::string_view text) {
  static const std::map<char, std::string_view> entities{{'&', "&amp;"},
                                                         {'<', "&lt;"},
                                                         {'>', "&gt;"},
                                                         {'"', "&quot;"},
                                                         {'\'', "&#39;"}};
  std::string result;
  for (const char letter : text) {
    if (const auto entity = entities.find(letter); entity != entities.end()) {
      result += entity->second;
    } else if (is_forbidden(letter)) {
      result += "\xef\xbf\xbd";  // U+FFFD
    } else {
      result += letter;
    }
  }
  return result;
}

double text_width(std::string_view text) {
  double width = 0;
  for (const char byte : text) {
    if (begins_character(byte)) width += letter_width(byte);
  }
  return width;
}

std::string cut_to(const std::string& text, double width) {
  if (text_width(text) <= width) return text;
  const std::string mark = "…";
  double left = width - text_width(mark);
  std::string result;
  for (const char byte : text) {
    if (begins_character(byte)) left -= letter_width(byte);
    if (left < 0) break;
    result += byte;
  }
  return result + mark;
}

void Canvas::text(double x, double top, const std::string& content,
                  const std::string& css_class, Anchor anchor) {
  const char* where = anchor == Anchor::kEnd      ? " text-anchor=\"end\""
                      : anchor == Anchor::kMiddle ? " text-anchor=\"middle\""
                                                  : "";
  body_ += fmt::format(
      "<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"{}\"{}>{}"
      "</text>\n",
      x, top, css_class, where, escaped(content));
}

void Canvas::rectangle(double x, double top, double width, double height,
                       const std::string& css_class, const std::string& title) {
  body_ += fmt::format(
      "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" "
      "class=\"{}\"",
      x, top, width, height, css_class);
  body_ += title.empty()
               ? "/>\n"
               : fmt::format("><title>{}</title></rect>\n", escaped(title));
}

void Canvas::line(double x1, double y1, double x2, double y2,
                  const std::string& css_class) {
  body_ += fmt::format(
      "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" "
      "class=\"{}\"/>\n",
      x1, y1, x2, y2, css_class);
}

void Canvas::curve(const Points& points, const std::string& css_class) {
  if (points.empty()) return;
  body_ += fmt::format("<path d=\"{}\" class=\"curve {}\"/>\n", path_of(points),
                       css_class);
}

void Canvas::area(const Points& points, const std::string& css_class) {
  if (points.empty()) return;
  body_ += fmt::format("<path d=\"{}Z\" class=\"area {}\"/>\n", path_of(points),
                       css_class);
}

void Canvas::circle(double x, double top, double radius,
                    const std::string& css_class, const std::string& title) {
  body_ += fmt::format(
      "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:.1f}\" class=\"{}\"><title>{}"
      "</title></circle>\n",
      x, top, radius, css_class, escaped(title));
}

std::string Canvas::head(const std::string& attributes) const {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} "
      "{1:.0f}\" width=\"{0:.0f}\" height=\"{1:.0f}\" role=\"img\" {2}>\n",
      layout.width, y, attributes);
}

std::string Canvas::finish(const std::string& id, const std::string& title,
                           const std::string& description) const {
  return head(fmt::format("aria-labelledby=\"{0}-t {0}-d\"", id)) +
         fmt::format(
             "<title id=\"{0}-t\">{1}</title>\n<desc id=\"{0}-d\">{2}</desc>\n",
             id, escaped(title), escaped(description)) +
         body_ + "</svg>\n";
}

std::string Canvas::finish_file(const std::string& title,
                                const std::string& style) const {
  return head(fmt::format("aria-label=\"{}\"", escaped(title))) + "<style>\n" +
         style + "</style>\n" + body_ + "</svg>\n";
}

void label_row(Canvas& canvas, const std::string& label,
               const std::string& ending) {
  const ChartLayout& layout = canvas.layout;
  const double room = layout.has_labels_above()
                          ? layout.width - 2 * layout.margin
                          : layout.labels - 10;
  // The ending is cut, too, if it alone is too long.
  const std::string shown =
      cut_to(cut_to(label, room - text_width(ending)) + ending, room);
  if (layout.has_labels_above()) {
    canvas.text(layout.margin, canvas.y + 13, shown, "above");
    canvas.y += 19;
    return;
  }
  canvas.text(layout.bar_x() - 10, canvas.y + kBarHeight - 2, shown, "",
              Canvas::Anchor::kEnd);
}

void end_row(Canvas& canvas) { canvas.y += 24; }

void draw_legend(Canvas& canvas, const std::vector<LegendEntry>& entries) {
  const ChartLayout& layout = canvas.layout;
  constexpr double kSwatch = 16;
  constexpr double kGap = 14;
  constexpr double kRowHeight = 20;
  const double end = layout.width - layout.margin;
  double x = layout.bar_x();
  for (const auto& [name, css_class, is_line] : entries) {
    const std::string shown = cut_to(name, end - layout.bar_x() - kSwatch - 6);
    const double width = kSwatch + 6 + text_width(shown);
    if (x > layout.bar_x() && x + width > end) {
      x = layout.bar_x();
      canvas.y += kRowHeight;
    }
    if (is_line) {
      canvas.curve({{x, canvas.y + 8}, {x + kSwatch, canvas.y + 8}}, css_class);
    } else {
      canvas.rectangle(x + 2, canvas.y + 3, 12, 10, css_class);
    }
    canvas.text(x + kSwatch + 6, canvas.y + 12, shown, "small");
    x += width + kGap;
  }
  canvas.y += kRowHeight + 4;
}

std::string run_class(size_t index) {
  return "run" + std::to_string(index % kRunColours);
}

// A printed page always has the light colours.
std::string style_sheet() {
  return std::string("svg, :root {") + kLight +
         "}\n@media screen and (prefers-color-scheme: dark) {\nsvg, :root {" +
         kDark + "} }" + kCharts;
}

}  // namespace lockstep::tools
