#pragma once

#include <string>

#include "lockstep/train/run_report.h"

namespace lockstep::train {

/// What a run says at its end: time, memory and load of each device, loss and
/// accuracy of the last epoch. Lines, the last without an end; "" for a run of
/// no steps.
std::string summary_text(const RunReport& report);

/// "parameter_sha256 12ab... (2 shards)". Digests can be compared only where
/// the number of shards is the same, so it is said with each.
std::string digest_text(const RunReport& report);

}  // namespace lockstep::train
