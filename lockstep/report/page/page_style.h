#pragma once

#include <string>

namespace lockstep::report {

/// What a page has beside style_sheet(), as CSS.
std::string page_style();

}  // namespace lockstep::report
