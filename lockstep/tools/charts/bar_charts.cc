// Bar charts with one row per run, device or lane.
#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "lockstep/base/format.h"
#include "lockstep/tools/charts/axis.h"
#include "lockstep/tools/charts/charts.h"

namespace lockstep::tools {
namespace {

// The time of a step that belongs to no phase.
constexpr const char* kOther = "other";

// There are either 101 percentiles or none.
double percentile_of(const training::RunReport& report, size_t percent) {
  const auto& all = report.step_time_percentiles_s;
  return all.empty() ? report.step_time_s.median : all[percent];
}

// Writes `value` right of a bar that ends at `end`.
void end_row(Canvas& canvas, double end, const std::string& value) {
  canvas.text(end + 8, canvas.y + kBarHeight - 2, value, "value");
  end_row(canvas);
}

// Draws a bar up to the median, and a whisker from the 10th to the 90th
// percentile.
void draw_step_time(Canvas& canvas, const ComparedRun& run, size_t index,
                    double longest) {
  const ChartLayout& layout = canvas.layout;
  const training::RunReport& report = run.report;
  const auto x_of = [&](double seconds) {
    return layout.bar_x() + layout.bars() * seconds / longest;
  };
  const std::string value = format_duration(report.step_time_s.median);
  label_row(canvas, run.label());
  const double end =
      std::max(x_of(report.step_time_s.median), layout.bar_x() + 1);
  canvas.rectangle(layout.bar_x(), canvas.y, end - layout.bar_x(), kBarHeight,
                   run_class(index), run.label() + ": " + value);
  const double low = x_of(percentile_of(report, 10));
  const double high = x_of(percentile_of(report, 90));
  const double middle = canvas.y + kBarHeight / 2;
  if (high - low > 1) {
    canvas.line(low, middle, high, middle, "mark");
    canvas.line(low, middle - 4, low, middle + 4, "mark");
    canvas.line(high, middle - 4, high, middle + 4, "mark");
  }
  end_row(canvas, std::max(end, high), value);
}

void draw_memory(Canvas& canvas, const Comparison& comparison, int64_t most) {
  const ChartLayout& layout = canvas.layout;
  const auto draw = [&](const std::string& run, const std::string& where,
                        int64_t bytes, const std::string& css_class) {
    const std::string value = bytes_text(bytes);
    const double length =
        std::max(1.0, layout.bars() * static_cast<double>(bytes) /
                          static_cast<double>(most));
    label_row(canvas, run, where);
    canvas.rectangle(layout.bar_x(), canvas.y, length, kBarHeight, css_class,
                     run + where + ": " + value);
    end_row(canvas, layout.bar_x() + length, value);
  };
  for (size_t i = 0; i < comparison.runs.size(); ++i) {
    const ComparedRun& run = comparison.runs[i];
    for (const auto& device : run.report.devices) {
      draw(run.label(), " " + device.name, device.memory_peak_bytes,
           run_class(i));
    }
    if (!run.report.devices.empty() && run.report.memory_shared_bytes > 0) {
      draw(run.label(), " shared", run.report.memory_shared_bytes, "shared");
    }
  }
}

// Returns the phases of a run and the time outside of them, which together are
// the mean step.
double phases_and_rest(const training::RunReport& report) {
  return total(report.phases_s) + outside_phases(report).value_or(0);
}

void draw_phases(Canvas& canvas, const Comparison& comparison, double longest) {
  const ChartLayout& layout = canvas.layout;
  for (const auto& run : comparison.runs) {
    if (total(run.report.phases_s) <= 0) continue;
    const double sum = phases_and_rest(run.report);
    label_row(canvas, run.label());
    double x = layout.bar_x();
    const auto draw = [&](const char* name, double seconds) {
      const double length = layout.bars() * seconds / longest;
      if (length <= 0) return;
      // Where there is room, a gap keeps phases distinguishable without
      // colours.
      canvas.rectangle(
          x, canvas.y, length > 2 ? length - 1 : length, kBarHeight, name,
          fmt::format("{}: {} ({:.0f} %)", name, format_duration(seconds),
                      100 * seconds / sum));
      x += length;
    };
    for (const Phase& phase : kPhases) {
      draw(phase.name, run.report.phases_s.*phase.seconds);
    }
    draw(kOther, outside_phases(run.report).value_or(0));
    end_row(canvas, x, format_duration(sum));
  }
  std::vector<LegendEntry> entries;
  for (const Phase& phase : kPhases) {
    entries.push_back({.name = phase.name, .css_class = phase.name});
  }
  entries.push_back({.name = kOther, .css_class = kOther});
  draw_legend(canvas, entries);
}

// Draws the axis behind `height` pixels of rows that begin at canvas.y.
void draw_axis(Canvas& canvas, double span, double height, double seconds) {
  const double left = canvas.layout.bar_x();
  const double bottom = canvas.y + height;
  for (const double mark : marks_between(0, seconds, span > 400 ? 10 : 5)) {
    const double x = left + span * mark / seconds;
    canvas.line(x, canvas.y, x, bottom);
    canvas.text(x + 2, bottom + 12, mark_label(mark) + (mark > 0 ? "" : " ms"),
                "small");
  }
}

void draw_time_line(Canvas& canvas, const TimeLine& line) {
  const ChartLayout& layout = canvas.layout;
  // No values are drawn to the right of the bars, only the label of the last
  // mark.
  const double span = layout.bars() + layout.values - 34;
  const double height = (layout.has_labels_above() ? 43.0 : 24.0) *
                        static_cast<double>(line.rows.size());
  draw_axis(canvas, span, height, line.seconds);
  for (const auto& row : line.rows) {
    label_row(canvas, row.label);
    for (const Block& block : row.blocks) {
      const BlockKind& kind = kBlockKinds[block.kind];
      canvas.rectangle(layout.bar_x() + span * block.begin_s / line.seconds,
                       canvas.y,
                       std::max(1.0, span * block.seconds() / line.seconds),
                       kBarHeight, kind.css_class,
                       fmt::format("{}: {} from {}", kind.name,
                                   format_duration(block.seconds()),
                                   format_duration(block.begin_s)));
    }
    end_row(canvas);
  }
  canvas.y += 24;
  std::vector<LegendEntry> entries;
  for (const size_t kind : line.kinds()) {
    entries.push_back({.name = kBlockKinds[kind].name,
                       .css_class = kBlockKinds[kind].css_class});
  }
  draw_legend(canvas, entries);
}

// Returns the time that each kind of block takes, for each lane.
Section figures_of(const TimeLine& line) {
  Section section{.title = "Figures of the chart: " + line.title,
                  .header = {"Lane"}};
  const auto kinds = line.kinds();
  for (const size_t kind : kinds) {
    section.header.emplace_back(kBlockKinds[kind].name);
  }
  for (const auto& row : line.rows) {
    std::map<size_t, double> sums;
    for (const Block& block : row.blocks) sums[block.kind] += block.seconds();
    std::vector<std::string> cells{row.label};
    for (const size_t kind : kinds) {
      cells.push_back(sums.contains(kind) ? format_duration(sums[kind]) : "-");
    }
    section.rows.push_back(std::move(cells));
  }
  return section;
}

}  // namespace

Chart step_time_chart(const Comparison& comparison) {
  double longest = 0;
  bool has_spread = false;
  for (const auto& run : comparison.runs) {
    longest = std::max({longest, run.report.step_time_s.median,
                        percentile_of(run.report, 90)});
    has_spread |= !run.report.step_time_percentiles_s.empty();
  }
  Chart chart{.title = "Step time of each run",
              .note = has_spread ? "The bar ends at the median; eight of ten "
                                   "steps are within the line on it."
                                 : ""};
  if (longest <= 0) return chart;
  chart.draw = [&comparison, longest](Canvas& canvas) {
    for (size_t i = 0; i < comparison.runs.size(); ++i) {
      draw_step_time(canvas, comparison.runs[i], i, longest);
    }
  };
  return chart;
}

Chart memory_chart(const Comparison& comparison) {
  int64_t most = 0;
  for (const auto& run : comparison.runs) {
    if (run.report.devices.empty()) continue;
    most = std::max(most, run.report.memory_shared_bytes);
    for (const auto& device : run.report.devices) {
      most = std::max(most, device.memory_peak_bytes);
    }
  }
  Chart chart{.title = "Memory peak of each device"};
  if (most <= 0) return chart;
  chart.draw = [&comparison, most](Canvas& canvas) {
    draw_memory(canvas, comparison, most);
  };
  return chart;
}

Chart phase_chart(const Comparison& comparison) {
  double longest = 0;
  for (const auto& run : comparison.runs) {
    longest = std::max(longest, phases_and_rest(run.report));
  }
  Chart chart{.title = "Phases of a step"};
  const bool has_phases = std::ranges::any_of(
      comparison.runs,
      [](const ComparedRun& run) { return total(run.report.phases_s) > 0; });
  if (!has_phases) return chart;
  chart.draw = [&comparison, longest](Canvas& canvas) {
    draw_phases(canvas, comparison, longest);
  };
  return chart;
}

Chart time_line_chart(const TimeLine& line) {
  Chart chart{.title = line.title};
  if (line.rows.empty() || line.seconds <= 0) return chart;
  chart.draw = [&line](Canvas& canvas) { draw_time_line(canvas, line); };
  chart.figures = figures_of(line);
  return chart;
}

}  // namespace lockstep::tools
