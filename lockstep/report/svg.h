#pragma once

#include <string>
#include <string_view>

#include "lockstep/report/comparison.h"
#include "lockstep/report/time_line.h"

namespace lockstep::report {

/// `text` with &, <, > and quotes as entities: for HTML and SVG.
std::string escaped(std::string_view text);

/// The colours of charts and page, light and dark, as CSS.
std::string style_sheet();

/// Step time of each run, as bars. An <svg> element for a page.
std::string step_time_chart(const Comparison& comparison);
/// Memory peak of each device of each run. Empty if none is known.
std::string memory_chart(const Comparison& comparison);
/// A step of each run, cut into its phases. Empty if none is known.
std::string phase_chart(const Comparison& comparison);
/// A step of a run, lane by lane. Empty if there are no rows.
std::string time_line_chart(const TimeLine& line);

/// The set-up table and the charts as one picture: a whole .svg file.
std::string picture(const Comparison& comparison);

}  // namespace lockstep::report
