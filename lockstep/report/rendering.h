#pragma once

#include <string>

#include "lockstep/report/comparison.h"

// How a comparison is shown: on a terminal, as a page and as a picture.
namespace lockstep::report {

struct TimeLine;

enum class Colour { kNever, kAlways };

/// Colour where `fd` is a terminal and NO_COLOR is not set.
Colour colour_of(int fd);

/// The whole comparison for a terminal of `width` columns, none of its lines
/// wider: the tables, when what happens, and how to read it.
std::string to_text(const Comparison& comparison, Colour colour,
                    int width = 80);

/// The comparison as one page that needs nothing else: no scripts, no links
/// out. Light or dark as the reader's system is.
std::string to_html(const Comparison& comparison);

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
