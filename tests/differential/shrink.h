#pragma once

#include <functional>

#include "tests/differential/case.h"
#include "tests/differential/verdict.h"

namespace lockstep::differential {

/// A case as small as can be for which `fails` still holds: with fewer events,
/// nodes, outputs, samples, shards, devices, ranks and options.
Case shrink(Case failing, const std::function<bool(const Case&)>& fails);

}  // namespace lockstep::differential
