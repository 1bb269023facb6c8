#pragma once

#include <string>

#include "lockstep/base/json.h"
#include "lockstep/report/collectives/collective_bench.h"

namespace lockstep::report {

/// Prints results in the format of nccl-tests: a head, a line for each backend,
/// and a summary. If `width` is too small for the columns of nccl-tests, each
/// size has a separate table.
std::string header_text(Collective collective, int ranks, int width);
std::string to_text(const CollectiveReport& report, const CollectiveSize& size,
                    int width);
std::string summary_text(const CollectiveReport& report, int width);
nlohmann::json to_json(const CollectiveReport& report);

}  // namespace lockstep::report
