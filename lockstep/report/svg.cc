#include <algorithm>

#include <fmt/format.h>

#include "lockstep/base/terminal.h"
#include "lockstep/report/canvas.h"
#include "lockstep/report/rendering.h"
#include "lockstep/report/sections.h"
#include "lockstep/report/time_line.h"

namespace lockstep::report {
namespace {

using Anchor = Canvas::Anchor;

void draw_bar(Canvas& canvas, const std::string& label, double fraction,
              const std::string& value, const std::string& css_class) {
  label_row(canvas, label);
  const double length = std::max(1.0, kBars * fraction);
  canvas.rectangle(kBarX, canvas.y, length, kBarHeight, css_class,
                   label + ": " + value);
  canvas.text(kBarX + length + 8, canvas.y + kBarHeight - 2, value, "value");
  canvas.y += kRow;
}

void draw_step_times(Canvas& canvas, const Comparison& comparison) {
  double longest = 0;
  for (const auto& run : comparison.runs) {
    longest = std::max(longest, run.report.step_time_s.median);
  }
  if (longest <= 0) return;
  for (const auto& run : comparison.runs) {
    const double seconds = run.report.step_time_s.median;
    draw_bar(canvas, run.label(), seconds / longest, format_duration(seconds),
             run.engine == kPyTorch ? "peer" : "own");
  }
}

void draw_memory(Canvas& canvas, const Comparison& comparison) {
  int64_t most = 0;
  for (const auto& run : comparison.runs) {
    most = std::max(most, run.report.memory_shared_bytes);
    for (const auto& device : run.report.devices) {
      most = std::max(most, device.memory_peak_bytes);
    }
  }
  if (most <= 0) return;
  const auto draw = [&](const std::string& label, int64_t bytes,
                        const std::string& css_class) {
    draw_bar(canvas, label,
             static_cast<double>(bytes) / static_cast<double>(most),
             format_bytes(static_cast<double>(bytes)), css_class);
  };
  for (const auto& run : comparison.runs) {
    for (const auto& device : run.report.devices) {
      draw(run.label() + " " + device.name, device.memory_peak_bytes, "own");
    }
    if (!run.report.devices.empty() && run.report.memory_shared_bytes > 0) {
      draw("held once", run.report.memory_shared_bytes, "shared");
    }
  }
}

bool has_phases(const Comparison& comparison) {
  return std::any_of(
      comparison.runs.begin(), comparison.runs.end(),
      [](const auto& run) { return total(run.report.phases_s) > 0; });
}

void draw_phases(Canvas& canvas, const Comparison& comparison) {
  double longest = 0;
  for (const auto& run : comparison.runs) {
    longest = std::max(longest, total(run.report.phases_s));
  }
  for (const auto& run : comparison.runs) {
    const double sum = total(run.report.phases_s);
    if (sum <= 0) continue;
    label_row(canvas, run.label());
    double x = kBarX;
    for (const Phase& phase : kPhases) {
      const double seconds = run.report.phases_s.*phase.seconds;
      const double length = kBars * seconds / longest;
      if (length <= 0) continue;
      canvas.rectangle(
          x, canvas.y, length, kBarHeight, phase.name,
          fmt::format("{}: {} ({:.0f} %)", phase.name, format_duration(seconds),
                      100 * seconds / sum));
      x += length;
    }
    canvas.text(x + 8, canvas.y + kBarHeight - 2, format_duration(sum),
                "value");
    canvas.y += kRow;
  }
  std::vector<LegendEntry> entries;
  for (const Phase& phase : kPhases) {
    entries.emplace_back(phase.name, phase.name);
  }
  draw_legend(canvas, entries);
}

// There are no values to the right of the bars, but the last mark's label.
constexpr double kSpan = kBars + kValues - 30;
constexpr int kMarks = 10;

// Behind what comes on it: `rows` rows from canvas.y on.
void draw_axis(Canvas& canvas, size_t rows, double seconds) {
  const double bottom = canvas.y + kRow * static_cast<double>(rows);
  for (const double mark : axis_marks(seconds, kMarks)) {
    const double x = kBarX + kSpan * mark / seconds;
    canvas.line(x, canvas.y, x, bottom + 6);
    canvas.text(x + 3, bottom + 6, mark_label(mark) + (mark > 0 ? "" : " ms"),
                "small");
  }
}

void draw_time_line(Canvas& canvas, const TimeLine& line) {
  if (line.seconds <= 0) return;
  draw_axis(canvas, line.rows.size(), line.seconds);
  for (const auto& row : line.rows) {
    label_row(canvas, row.label);
    for (const Block& block : row.blocks) {
      const BlockKind& kind = kBlockKinds[block.kind];
      canvas.rectangle(kBarX + kSpan * block.begin_s / line.seconds, canvas.y,
                       std::max(1.0, kSpan * block.seconds() / line.seconds),
                       kBarHeight, kind.css_class,
                       fmt::format("{}: {} from {}", kind.name,
                                   format_duration(block.seconds()),
                                   format_duration(block.begin_s)));
    }
    canvas.y += kRow;
  }
  canvas.y += kRow;
  std::vector<LegendEntry> entries;
  for (const size_t kind : line.kinds()) {
    entries.emplace_back(kBlockKinds[kind].name, kBlockKinds[kind].css_class);
  }
  draw_legend(canvas, entries);
}

void draw_title(Canvas& canvas, const std::string& title) {
  canvas.y += 10;
  canvas.text(kMargin, canvas.y + 12, title, "title");
  canvas.y += 24;
}

// The columns of a section, spread over the picture's width.
void draw_table(Canvas& canvas, const Section& section) {
  const double step = (kChartWidth - 2 * kMargin - kLabels) /
                      static_cast<double>(section.header.size() - 1);
  const auto draw = [&](const std::vector<std::string>& cells,
                        const std::string& css_class) {
    canvas.text(kMargin, canvas.y + 12, cells.front(), css_class);
    for (size_t column = 1; column < cells.size(); ++column) {
      canvas.text(kBarX + step * static_cast<double>(column), canvas.y + 12,
                  cells[column], css_class, Anchor::kEnd);
    }
    canvas.y += 18;
    canvas.line(kMargin, canvas.y, kChartWidth - kMargin, canvas.y);
    canvas.y += 4;
  };
  draw(section.header, "head");
  for (const auto& row : section.rows) draw(row, "");
}

}  // namespace

std::string style_sheet() {
  // The phases that compute are blue, those that move data warm, so that the
  // overhead is seen before a label is read.
  return R"(svg, :root { --ink: #1f2328; --muted: #59636e; --paper: #ffffff;
  --rule: #d1d9e0; }
@media (prefers-color-scheme: dark) {
  svg, :root { --ink: #e6edf3; --muted: #9198a1; --paper: #0d1117;
    --rule: #3d444d; } }
svg text { fill: var(--ink); font: 13px system-ui, sans-serif;
  font-variant-numeric: tabular-nums; }
svg .title { font-weight: 600; font-size: 14px; }
svg .head, svg .small, svg .value, svg .note { fill: var(--muted); }
svg .small, svg .note { font-size: 12px; }
svg .paper { fill: var(--paper); }
svg .rule { stroke: var(--rule); }
svg .own { fill: #3b82c4; } svg .peer { fill: #8b949e; }
svg .shared { fill: #4d9f6d; }
svg .scatter { fill: #efb13e; } svg .replicate { fill: #de7432; }
svg .forward { fill: #6aa9e0; } svg .gather { fill: #c95d8c; }
svg .backward { fill: #2f6fb0; } svg .reduce { fill: #9c5bbf; }
svg .update { fill: #4d9f6d; } svg .wait { fill: #c8ced6; }
)";
}

std::string step_time_chart(const Comparison& comparison) {
  Canvas canvas(kChartWidth);
  draw_step_times(canvas, comparison);
  return canvas.y > 0 ? canvas.finish("Step time of each set up") : "";
}

std::string memory_chart(const Comparison& comparison) {
  Canvas canvas(kChartWidth);
  draw_memory(canvas, comparison);
  return canvas.y > 0 ? canvas.finish("Memory peak of each device") : "";
}

std::string phase_chart(const Comparison& comparison) {
  if (!has_phases(comparison)) return "";
  Canvas canvas(kChartWidth);
  draw_phases(canvas, comparison);
  return canvas.finish("Where the time of a step goes");
}

std::string time_line_chart(const TimeLine& line) {
  if (line.rows.empty()) return "";
  Canvas canvas(kChartWidth);
  draw_time_line(canvas, line);
  return canvas.finish(line.title);
}

std::string picture(const Comparison& comparison) {
  Canvas content(kChartWidth);
  draw_title(content, "lockstep compare: " + headline(comparison));
  content.text(kMargin, content.y + 2, method(comparison), "note");
  content.y += 14;
  draw_table(content, set_up_section(comparison));
  draw_title(content, "Step time");
  draw_step_times(content, comparison);
  if (!memory_chart(comparison).empty()) {
    draw_title(content, "Memory peak of each device");
    draw_memory(content, comparison);
  }
  if (has_phases(comparison)) {
    draw_title(content, "Where the time of a step goes");
    draw_phases(content, comparison);
  }
  for (const TimeLine& line : time_lines(comparison)) {
    draw_title(content, line.title);
    draw_time_line(content, line);
  }
  return content.finish("What lockstep compare measured",
                        style_sheet() + "svg { background: var(--paper); }\n");
}

}  // namespace lockstep::report
