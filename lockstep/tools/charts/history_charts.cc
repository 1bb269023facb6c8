// Charts of values over the runs, and of the distribution of step times.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "lockstep/base/format.h"
#include "lockstep/tools/charts/charts.h"
#include "lockstep/tools/charts/line_chart.h"
#include "lockstep/tools/comparison/run_values.h"

namespace lockstep::tools {
namespace {

constexpr double kHillHeight = 44;
// Larger values are not losses that a chart can show.
constexpr double kLargestLoss = 1e30;

bool has_percentiles(const ComparedRun& run) {
  return !run.report.step_time_percentiles_s.empty();
}

// Returns the share of steps below `seconds`. It is linear between percentiles.
double share_below(const std::vector<double>& percentiles, double seconds) {
  if (seconds < percentiles.front()) return 0;
  const auto above =
      std::upper_bound(percentiles.begin(), percentiles.end(), seconds);
  if (above == percentiles.end()) return 1;
  const auto index = static_cast<double>(above - percentiles.begin()) - 1;
  const double low = *(above - 1);
  return (index + (seconds - low) / (*above - low)) / 100;
}

struct Span {
  double low = 0, high = 0;
};

// Returns the range from the fastest step of all runs to the highest 99th
// percentile.
Span span_of(const Comparison& comparison) {
  Span span{.low = INFINITY, .high = 0};
  for (const auto& run : comparison.runs) {
    if (!has_percentiles(run)) continue;
    span.low = std::min(span.low, run.report.step_time_percentiles_s.front());
    span.high = std::max(span.high, run.report.step_time_percentiles_s[99]);
  }
  // A bar stays visible even if all steps took the same time.
  const double spare = std::max(0.02 * (span.high - span.low),
                                std::max(0.001 * span.high, 1e-9));
  return {.low = std::max(span.low - spare, 0.0), .high = span.high + spare};
}

std::string spread_text(const std::vector<double>& percentiles) {
  return fmt::format(
      "p10 {}, median {}, p90 {}", format_duration(percentiles[10]),
      format_duration(percentiles[50]), format_duration(percentiles[90]));
}

void draw_hill(Canvas& canvas, const ComparedRun& run, size_t index,
               const Span& span) {
  const ChartLayout& layout = canvas.layout;
  const auto& percentiles = run.report.step_time_percentiles_s;
  const double left = layout.margin;
  const double width = layout.width - 2 * layout.margin;
  const std::string spread = spread_text(percentiles);
  if (layout.has_labels_above()) {
    canvas.text(left, canvas.y + 13, cut_to(run.label(), width));
    canvas.text(left, canvas.y + 30, cut_to(spread, width), "small");
    canvas.y += 36;
  } else {
    canvas.text(left, canvas.y + 13, cut_to(run.label(), 200));
    canvas.text(left + width, canvas.y + 13, spread, "small",
                Canvas::Anchor::kEnd);
    canvas.y += 20;
  }
  const int bins = width > 400 ? 60 : 36;
  const double bin_s = (span.high - span.low) / bins;
  std::vector<double> shares;
  for (int i = 0; i < bins; ++i) {
    const double begin = span.low + i * bin_s;
    shares.push_back(share_below(percentiles, begin + bin_s) -
                     share_below(percentiles, begin));
  }
  const double most = *std::ranges::max_element(shares);
  const double bottom = canvas.y + kHillHeight;
  const double bin_width = width / bins;
  for (int i = 0; i < bins; ++i) {
    const double share = shares[static_cast<size_t>(i)];
    if (share <= 0 || most <= 0) continue;
    const double height = std::max(1.0, kHillHeight * share / most);
    canvas.rectangle(
        left + i * bin_width, bottom - height, bin_width - 0.5, height,
        run_class(index),
        fmt::format("{:.0f} % of the steps take {} to {}", 100 * share,
                    format_duration(span.low + i * bin_s),
                    format_duration(span.low + (i + 1) * bin_s)));
  }
  for (const size_t percent : {10, 50, 90}) {
    const double x =
        left + width * std::clamp((percentiles[percent] - span.low) /
                                      (span.high - span.low),
                                  0.0, 1.0);
    const double height = percent == 50 ? kHillHeight : kHillHeight / 2;
    canvas.line(x, bottom - height, x, bottom, "mark");
  }
  canvas.line(left, bottom, left + width, bottom);
  canvas.y = bottom + 12;
}

void draw_distributions(Canvas& canvas, const Comparison& comparison) {
  const Span span = span_of(comparison);
  for (size_t i = 0; i < comparison.runs.size(); ++i) {
    if (!has_percentiles(comparison.runs[i])) continue;
    draw_hill(canvas, comparison.runs[i], i, span);
  }
  const ChartLayout& layout = canvas.layout;
  canvas.text(layout.margin, canvas.y + 2, format_duration(span.low), "small");
  canvas.text(layout.width - layout.margin, canvas.y + 2,
              format_duration(span.high), "small", Canvas::Anchor::kEnd);
  canvas.y += 10;
}

Section distribution_figures(const Comparison& comparison) {
  Section section{.title = "Figures of the chart: step times",
                  .header = {"Run", "Least", "p10", "p25", "Median", "p75",
                             "p90", "p99", "Most"}};
  for (const auto& run : comparison.runs) {
    if (!has_percentiles(run)) continue;
    std::vector<std::string> cells{run.label()};
    for (const size_t percent : {0, 10, 25, 50, 75, 90, 99, 100}) {
      cells.push_back(
          format_duration(run.report.step_time_percentiles_s[percent]));
    }
    section.rows.push_back(std::move(cells));
  }
  return section;
}

Chart line_chart(std::string title, std::string note, LineChart chart) {
  Chart result{.title = std::move(title), .note = std::move(note)};
  if (!chart.has_curve()) return result;
  result.draw = [chart = std::move(chart)](Canvas& canvas) {
    draw_line_chart(canvas, chart);
  };
  return result;
}

Canvas::Points losses_of(const training::RunReport& report) {
  Canvas::Points points;
  for (const auto& [step, loss] : losses_by_step(report)) {
    if (std::abs(loss) > kLargestLoss) continue;
    points.emplace_back(static_cast<double>(step), loss);
  }
  return points;
}

Canvas::Points evaluated_losses(const training::RunReport& report) {
  Canvas::Points points;
  for (const auto& [step, test] : evaluations_of(report)) {
    const auto loss = test.metrics.find("loss");
    if (loss == test.metrics.end()) continue;
    if (std::abs(loss->second) > kLargestLoss) continue;
    points.emplace_back(static_cast<double>(step), loss->second);
  }
  return points;
}

Section loss_figures(const Comparison& comparison) {
  Section section{
      .title = "Figures of the chart: losses",
      .header = {"Run", "First step", "Last step", "Least", "Last evaluation"}};
  for (const auto& run : comparison.runs) {
    const auto losses = losses_of(run.report);
    if (losses.empty()) continue;
    const auto least = std::ranges::min_element(
        losses, {}, &Canvas::Points::value_type::second);
    const auto evaluated = evaluated_losses(run.report);
    section.rows.push_back(
        {run.label(), format_number(losses.front().second),
         format_number(losses.back().second), format_number(least->second),
         evaluated.empty() ? "-" : format_number(evaluated.back().second)});
  }
  return section;
}

}  // namespace

Chart distribution_chart(const Comparison& comparison) {
  Chart chart{
      .title = "How long steps take",
      .note =
          "The higher the hill, the more steps took so long; the long mark "
          "is the median, the short ones are p10 and p90. The slowest "
          "steps, one of a hundred, may be outside."};
  if (std::ranges::none_of(comparison.runs, has_percentiles)) return chart;
  chart.draw = [&comparison](Canvas& canvas) {
    draw_distributions(canvas, comparison);
  };
  chart.figures = distribution_figures(comparison);
  return chart;
}

Chart step_history_chart(const Comparison& comparison) {
  LineChart chart{.x_label = "step",
                  .begins_at_zero = true,
                  .format_value = format_duration};
  for (size_t i = 0; i < comparison.runs.size(); ++i) {
    const auto& history = comparison.runs[i].report.step_times;
    Curve curve{.label = comparison.runs[i].label(), .css_class = run_class(i)};
    for (size_t k = 0; k < history.steps.size(); ++k) {
      curve.points.emplace_back(static_cast<double>(history.steps[k]),
                                history.seconds[k]);
    }
    if (curve.points.size() > 1) chart.curves.push_back(std::move(curve));
  }
  return line_chart("Step time over the run",
                    "At most 512 steps of a run, at equal intervals.",
                    std::move(chart));
}

Chart loss_chart(const Comparison& comparison) {
  LineChart chart{.x_label = "step",
                  .begins_at_zero = false,
                  .format_value = [](double value) {
                    return fmt::format("{:.4g}", value);
                  }};
  for (size_t i = 0; i < comparison.runs.size(); ++i) {
    const ComparedRun& run = comparison.runs[i];
    const auto losses = losses_of(run.report);
    if (losses.size() > 1) {
      chart.curves.push_back({.label = run.label() + " training",
                              .css_class = run_class(i),
                              .points = losses});
    }
    const auto evaluated = evaluated_losses(run.report);
    if (!evaluated.empty()) {
      chart.curves.push_back({.label = run.label() + " evaluation",
                              .css_class = run_class(i) + " thin",
                              .points = evaluated,
                              .has_marks = true});
    }
  }
  Chart result = line_chart(
      "Loss over the run",
      "Where a point stands for several steps, the line is their mean and the "
      "band goes from the least to the greatest. Dots are evaluations.",
      std::move(chart));
  result.figures = loss_figures(comparison);
  return result;
}

}  // namespace lockstep::tools
