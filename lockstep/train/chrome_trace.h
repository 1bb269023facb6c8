#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "lockstep/train/report/rank_trace.h"

namespace lockstep::train {

/// Returns the traces in the Trace Event Format, which Perfetto and
/// chrome://tracing read. Each rank is a process, each of its lanes a thread,
/// each span a complete event ("X"). Times are in microseconds since the first
/// span. A span's index is in its `args`.
nlohmann::ordered_json to_chrome_trace(const std::vector<RankTrace>& ranks);

/// Writes the trace to a temporary file and renames it. Warns if spans were
/// dropped. Throws IoError.
void write_chrome_trace(const std::string& path,
                        const std::vector<RankTrace>& ranks);

}  // namespace lockstep::train
