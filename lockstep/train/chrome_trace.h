#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "lockstep/train/rank_trace.h"

namespace lockstep::train {

/// In the Trace Event Format, which Perfetto and chrome://tracing read: a
/// process for each rank, a thread for each of its lanes, a complete event
/// ("X") for each span, times in microseconds since the first. A span's index
/// is in its `args`.
nlohmann::ordered_json to_chrome_trace(const std::vector<RankTrace>& ranks);

/// Writes it aside and renames. Warns of spans that were dropped. Throws
/// IoError.
void write_chrome_trace(const std::string& path,
                        const std::vector<RankTrace>& ranks);

}  // namespace lockstep::train
