#pragma once

#include <string>
#include <vector>

#include "lockstep/launch/failure/failure.h"

namespace lockstep::launch {

/// The report that ends the output of a failed job: the other failures, a line
/// each, then the root cause. Ends with a newline.
std::string failure_report(const std::vector<Failure>& failures);

}  // namespace lockstep::launch
