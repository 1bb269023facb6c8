#pragma once

#include <string>

namespace lockstep::report {

/// Number of colours. Further runs, or curves of a chart, start again with the
/// first colour.
inline constexpr size_t kRunColours = 6;

/// Returns the CSS class of run `index`, such as "run0". It is the same in all
/// charts of a page. Shapes and lines of the class have the run's colour, and
/// lines also have the run's own dash.
std::string run_class(size_t index);

/// Returns the colours of charts, light and dark, as CSS. All have a contrast
/// to the paper of at least 3 to 1, and letters of at least 4.5 to 1, as WCAG 2
/// requires.
std::string style_sheet();

}  // namespace lockstep::report
