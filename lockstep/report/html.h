#pragma once

#include <string>

#include "lockstep/report/comparison.h"

namespace lockstep::report {

/// The comparison as one page that needs nothing else: no scripts, no links
/// out. Light or dark as the reader's system is.
std::string to_html(const Comparison& comparison);

}  // namespace lockstep::report
