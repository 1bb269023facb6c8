#pragma once

#include <string>
#include <vector>

#include "lockstep/train/run_report.h"

namespace lockstep::report {

/// What of the work of a step differs between two runs, with both values:
/// "batch_size 64 and 128". Work is the model and its parameters, the samples
/// of a step and their tokens, and the precision. Not work is how it is done:
/// by which strategy, on how many devices and ranks, in how many shards. What
/// one of the reports does not know is taken to be the same.
std::vector<std::string> differences_of_work(const train::RunReport& first,
                                             const train::RunReport& second);

}  // namespace lockstep::report
