#pragma once

#include <optional>
#include <string>

#include "tests/differential/case.h"
#include "tests/differential/trace.h"

namespace lockstep::differential {

/// The cause for which Lockstep may refuse this case with `message`, if there
/// is one. `plain` is what plain LibTorch did with it.
std::optional<std::string> cause_of_refusal(const Case& of,
                                            const std::string& message,
                                            const Trace& plain);

}  // namespace lockstep::differential
