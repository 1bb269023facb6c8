#pragma once

#include <functional>
#include <string>

#include "lockstep/tools/charts/canvas.h"
#include "lockstep/tools/comparison/comparison.h"
#include "lockstep/tools/comparison/time_line.h"
#include "lockstep/tools/tables/section.h"

namespace lockstep::tools {

/// A chart that can be drawn at different sizes.
struct Chart {
  std::string title;
  std::string note{};  ///< how to read it; may be empty
  /// Function that draws the chart from canvas.y on. Null if there is nothing
  /// to show.
  std::function<void(Canvas&)> draw{};
  /// Figures of the chart, for readers who can't see it. No rows if a table of
  /// the page already has them.
  Section figures{};

  bool is_empty() const { return draw == nullptr; }
};

// The comparison or the time line must outlive the chart.

/// Shows the median step time of each run, and its 10th to 90th percentile.
Chart step_time_chart(const Comparison& comparison);
/// Shows the peak memory of each device of each run.
Chart memory_chart(const Comparison& comparison);
/// Shows a step of each run, divided into its phases.
Chart phase_chart(const Comparison& comparison);
/// Shows a step of a run, lane by lane.
Chart time_line_chart(const TimeLine& line);

/// Shows the distribution of step times, run by run.
Chart distribution_chart(const Comparison& comparison);
/// Shows step times over the course of the runs, and so where steps became
/// slower.
Chart step_history_chart(const Comparison& comparison);
/// Shows the losses of steps and of evaluations.
Chart loss_chart(const Comparison& comparison);

/// Returns the set-up table and the charts as one picture: a whole .svg file.
std::string picture(const Comparison& comparison,
                    const ChartLayout& layout = kPictureLayout);

}  // namespace lockstep::tools
