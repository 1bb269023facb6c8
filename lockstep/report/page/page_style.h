#pragma once

#include <string>

namespace lockstep::report {

/// Returns the CSS of a page, which is used in addition to style_sheet().
std::string page_style();

}  // namespace lockstep::report
