#pragma once

#include <functional>
#include <string>

#include "lockstep/report/charts/canvas.h"
#include "lockstep/report/comparison/comparison.h"
#include "lockstep/report/comparison/time_line.h"
#include "lockstep/report/tables/section.h"

namespace lockstep::report {

/// A chart before it is drawn at one size or another.
struct Chart {
  std::string title;
  std::string note{};  ///< how to read it; may be empty
  /// From canvas.y on. Null: there is nothing to show.
  std::function<void(Canvas&)> draw{};
  /// What it shows as figures, for who can't see it; no rows where a table of
  /// the page has them.
  Section figures{};

  bool is_empty() const { return draw == nullptr; }
};

// The comparison, or the line, must outlive the chart.

/// Median step time of each run, and from which to which most steps were.
Chart step_time_chart(const Comparison& comparison);
/// Memory peak of each device of each run.
Chart memory_chart(const Comparison& comparison);
/// A step of each run, cut into its phases.
Chart phase_chart(const Comparison& comparison);
/// A step of a run, lane by lane.
Chart time_line_chart(const TimeLine& line);

/// How step times are distributed, run by run.
Chart distribution_chart(const Comparison& comparison);
/// The same over the runs: where steps became slower.
Chart step_history_chart(const Comparison& comparison);
/// How full the devices of one run were, over the run.
Chart memory_history_chart(const ComparedRun& run);
/// Losses of steps and of evaluations.
Chart loss_chart(const Comparison& comparison);

}  // namespace lockstep::report
