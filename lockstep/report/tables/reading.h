#pragma once

#include <string>
#include <vector>

#include "lockstep/report/comparison/comparison.h"

// Describes a comparison in words.
namespace lockstep::report {

/// Returns "mlp (6,308,874 parameters), batch of 64, 2 devices".
std::string headline(const Comparison& comparison);
/// Returns "3 rounds of 30 steps (5 to warm up), pooled, a fresh process each;
/// ...".
std::string method(const Comparison& comparison);

/// Returns sentences that explain the tables: whether the speed-up is
/// proportional, which device is fuller and by how much, and where the time
/// goes.
std::vector<std::string> reading(const Comparison& comparison);

}  // namespace lockstep::report
