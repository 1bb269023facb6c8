#pragma once

#include "tests/differential/case.h"
#include "tests/differential/verdict.h"

namespace lockstep::differential {

/// Trains the module of a case with plain LibTorch and as the case says, and
/// compares.
Verdict check(const Case& of);

}  // namespace lockstep::differential
