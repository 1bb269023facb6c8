#pragma once

#include <string>

namespace lockstep::report {

/// Runs, and curves of a chart, beyond this number begin again with the first
/// colour.
inline constexpr size_t kRunColours = 6;

/// "run0": the CSS class of what belongs to run `index`, the same in all charts
/// of a page. Filled shapes and lines of the class have its colour; lines have
/// a dash of their own as well.
std::string run_class(size_t index);

/// The colours of charts, light and dark, as CSS. All have a contrast of 3 to
/// 1 or more to the paper, as WCAG 2 asks of graphics, letters one of 4.5.
std::string style_sheet();

}  // namespace lockstep::report
