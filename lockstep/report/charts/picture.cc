#include "lockstep/report/charts/charts.h"
#include "lockstep/report/tables/comparison_sections.h"

namespace lockstep::report {
namespace {

using Anchor = Canvas::Anchor;

void draw_title(Canvas& canvas, const std::string& title) {
  canvas.y += 10;
  canvas.text(canvas.layout.margin, canvas.y + 12, title, "title");
  canvas.y += 24;
}

void draw_chart(Canvas& canvas, const Chart& chart) {
  if (chart.is_empty()) return;
  draw_title(canvas, chart.title);
  chart.draw(canvas);
}

// Draws a section as a table, with its columns spread over the picture's width.
void draw_table(Canvas& canvas, const Section& section) {
  const ChartLayout& layout = canvas.layout;
  const double end = layout.width - layout.margin;
  const double step =
      (end - layout.bar_x()) / static_cast<double>(section.header.size() - 1);
  const auto draw = [&](const std::vector<std::string>& cells,
                        const std::string& css_class) {
    canvas.text(layout.margin, canvas.y + 12, cells.front(), css_class);
    for (size_t column = 1; column < cells.size(); ++column) {
      canvas.text(layout.bar_x() + step * static_cast<double>(column),
                  canvas.y + 12, cells[column], css_class, Anchor::kEnd);
    }
    canvas.y += 18;
    canvas.line(layout.margin, canvas.y, end, canvas.y);
    canvas.y += 4;
  };
  draw(section.header, "head");
  for (const auto& row : section.rows) draw(row, "");
}

}  // namespace

std::string picture(const Comparison& comparison) {
  Canvas content(kPictureLayout);
  draw_title(content, "lockstep compare: " + headline(comparison));
  content.text(kPictureLayout.margin, content.y + 2, method(comparison),
               "note");
  content.y += 14;
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

}  // namespace lockstep::report
