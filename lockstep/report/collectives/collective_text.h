#pragma once

#include <string>

#include "lockstep/base/json.h"
#include "lockstep/report/collectives/collective_bench.h"

namespace lockstep::report {

/// As nccl-tests print them: the head, a line for each way, what is below.
/// Where `width` columns are too few for nccl-tests' columns, each size has a
/// table of its own.
std::string header_text(const CollectiveReport& report, int width);
std::string to_text(const CollectiveReport& report, const CollectiveSize& size,
                    int width);
std::string summary_text(const CollectiveReport& report, int width);
nlohmann::json to_json(const CollectiveReport& report);

}  // namespace lockstep::report
