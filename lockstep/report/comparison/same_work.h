#pragma once

#include <string>
#include <vector>

#include "lockstep/train/run_report.h"

namespace lockstep::report {

/// Returns the differences between the work of two runs, with both values:
/// "batch_size 64 and 128". Work is the model and its parameters, the samples
/// of a step and their tokens, and the precision. How the work is done does not
/// count: the strategy, the number of devices, ranks and shards. A value that
/// one of the reports does not have counts as equal.
std::vector<std::string> differences_of_work(const train::RunReport& first,
                                             const train::RunReport& second);

}  // namespace lockstep::report
