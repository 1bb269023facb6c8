#include <algorithm>
#include <sstream>
#include <vector>

#include "lockstep/tools/charts/charts.h"
#include "lockstep/tools/tables/comparison_sections.h"

namespace lockstep::tools {
namespace {

using Anchor = Canvas::Anchor;

// Draws `text` on as many lines as it needs. Each line begins `height` pixels
// below the one before. `letters` is the width of the letters, where those of
// text_width() have 1.
void draw_lines(Canvas& canvas, const std::string& text,
                const std::string& css_class, double height, double letters) {
  const ChartLayout& layout = canvas.layout;
  const double room = (layout.width - 2 * layout.margin) / letters;
  std::istringstream words(text);
  std::string line;
  const auto draw = [&] {
    canvas.text(layout.margin, canvas.y, cut_to(line, room), css_class);
    canvas.y += height;
  };
  for (std::string word; words >> word;) {
    const std::string longer = line.empty() ? word : line + " " + word;
    if (!line.empty() && text_width(longer) > room) {
      draw();
      line = word;
    } else {
      line = longer;
    }
  }
  draw();
}

void draw_title(Canvas& canvas, const std::string& title) {
  canvas.y += 22;
  // 14 pixels instead of 13, and bold.
  draw_lines(canvas, title, "title", 18, 1.15);
  canvas.y -= 6;
}

void draw_note(Canvas& canvas, const std::string& note) {
  canvas.y += 2;
  draw_lines(canvas, note, "note", 14, 1);
  canvas.y -= 2;
}

void draw_chart(Canvas& canvas, const Chart& chart) {
  if (chart.is_empty()) return;
  draw_title(canvas, chart.title);
  chart.draw(canvas);
}

constexpr double kColumnGap = 12;

// Returns the width that each column needs, with the gap before it.
std::vector<double> column_widths(const Section& section) {
  std::vector<double> widths(section.header.size());
  const auto widen = [&](const std::vector<std::string>& cells) {
    for (size_t column = 0; column < cells.size(); ++column) {
      const double width = text_width(cells[column]) + kColumnGap;
      widths[column] = std::max(widths[column], width);
    }
  };
  widen(section.header);
  for (const auto& row : section.rows) widen(row);
  return widths;
}

// Draws the first column of a section, and the columns [first, last) spread
// over the rest of the picture's width.
void draw_columns(Canvas& canvas, const Section& section,
                  const std::vector<double>& widths, size_t first, size_t last,
                  double spare) {
  const ChartLayout& layout = canvas.layout;
  const double end = layout.width - layout.margin;
  const double more = spare / static_cast<double>(last - first);
  const auto draw = [&](const std::vector<std::string>& cells,
                        const std::string& css_class) {
    canvas.text(layout.margin, canvas.y + 12, cells.front(), css_class);
    double x = layout.margin + widths.front();
    for (size_t column = first; column < last; ++column) {
      x += widths[column] + more;
      canvas.text(x, canvas.y + 12, cells[column], css_class, Anchor::kEnd);
    }
    canvas.y += 18;
    canvas.line(layout.margin, canvas.y, end, canvas.y);
    canvas.y += 4;
  };
  draw(section.header, "head");
  for (const auto& row : section.rows) draw(row, "");
}

// Draws a section as a table. If it is wider than the picture, it becomes
// several, one below the other. Each has the first column and as many others
// as fit.
void draw_table(Canvas& canvas, const Section& section) {
  const ChartLayout& layout = canvas.layout;
  const std::vector<double> widths = column_widths(section);
  const double room = layout.width - 2 * layout.margin - widths.front();
  for (size_t first = 1; first < widths.size();) {
    double spare = room - widths[first];
    size_t last = first + 1;
    while (last < widths.size() && widths[last] <= spare) {
      spare -= widths[last++];
    }
    if (first > 1) canvas.y += 8;
    draw_columns(canvas, section, widths, first, last, std::max(spare, 0.0));
    first = last;
  }
}

}  // namespace

std::string picture(const Comparison& comparison, const ChartLayout& layout) {
  Canvas content(layout);
  draw_title(content, "lockstep compare: " + headline(comparison));
  draw_note(content, method(comparison));
  draw_table(content, set_up_section(comparison));
  draw_chart(content, step_time_chart(comparison));
  draw_chart(content, memory_chart(comparison));
  draw_chart(content, phase_chart(comparison));
  for (const TimeLine& line : time_lines(comparison)) {
    draw_chart(content, time_line_chart(line));
  }
  return content.finish_file(
      "What lockstep compare measured",
      style_sheet() + "svg { background: var(--paper); }\n");
}

}  // namespace lockstep::tools
