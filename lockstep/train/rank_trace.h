#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "lockstep/base/trace.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/device/device.h"

namespace lockstep::training {

/// A trace of what a rank did, and where it ran.
struct RankTrace {
  int64_t rank = 0;
  std::string host;
  int64_t pid = 0;
  std::string devices;  ///< "cpu:0, cpu:1"
  /// Identity of the clock. Times of ranks with the same clock can be compared.
  std::string clock;
  TraceLog log;
};

RankTrace trace_of_rank(const ProcessGroup& group,
                        const std::vector<Device>& devices, TraceLog log);

/// Returns every rank's trace, by rank, on every rank. All times refer to the
/// clock of rank 0. The clocks of other hosts are compared at barriers, so
/// times of two hosts may differ by the time that a message takes between them.
/// Collective.
std::vector<RankTrace> gather_traces(const ProcessGroup& group,
                                     const RankTrace& own);

/// Returns by how many ns a peer's clock is ahead, given readings of both
/// clocks at the same moments. This is the median difference; 0 without
/// readings.
int64_t clock_offset(const std::vector<int64_t>& peer_moments,
                     const std::vector<int64_t>& own_moments);

/// Returns only the step of median duration on rank 0, shifted to start at 0.
/// Empty if no step was recorded.
std::vector<RankTrace> typical_step(const std::vector<RankTrace>& ranks);

/// Returns typical_step() of all ranks without gathering everything that was
/// recorded: on every rank, by the clock of rank 0. A rank with more than 2000
/// spans in the step gives the longest ones. Collective.
std::vector<RankTrace> gather_typical_step(const ProcessGroup& group,
                                           RankTrace own);

/// Returns the traces in the Trace Event Format, which Perfetto and
/// chrome://tracing read. Each rank is a process, each of its lanes a thread,
/// each span a complete event ("X"). Times are in microseconds since the first
/// span. A span's index is in its `args`.
nlohmann::ordered_json to_chrome_trace(const std::vector<RankTrace>& ranks);

/// Writes the trace to a temporary file and renames it. Warns if spans were
/// dropped. Throws IoError.
void write_chrome_trace(const std::string& path,
                        const std::vector<RankTrace>& ranks);

nlohmann::json to_json(const RankTrace& trace);
/// Reads what to_json() wrote. Throws IoError.
RankTrace rank_trace_from_json(const nlohmann::json& json);

}  // namespace lockstep::training
