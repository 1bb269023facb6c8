// A time line as a chart: a bar for each block.
#include <algorithm>

#include <fmt/format.h>

#include "lockstep/base/terminal.h"
#include "lockstep/report/chart.h"
#include "lockstep/report/time_line.h"

namespace lockstep::report {
namespace {

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

}  // namespace

void draw(Canvas& canvas, const TimeLine& line) {
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

}  // namespace lockstep::report
