#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "lockstep/base/trace.h"
#include "lockstep/comm/world.h"
#include "lockstep/device/device.h"

namespace lockstep::train {

/// What a rank did, and where it ran.
struct RankTrace {
  int64_t rank = 0;
  std::string host;
  int64_t pid = 0;
  std::string devices;  ///< "cpu:0, cpu:1"
  /// Whose clock the times are of: ranks with the same can be compared.
  std::string clock;
  TraceLog log;
};

RankTrace trace_of_rank(const World& world, const std::vector<Device>& devices,
                        TraceLog log);

/// Every rank's, by rank, on every rank; all times by the clock of rank 0.
/// Clocks of other hosts are compared at barriers, so times of two hosts may
/// be apart by what a message takes between them. Collective.
std::vector<RankTrace> gather_traces(const World& world, const RankTrace& own);

/// How much a clock is ahead, in ns: `peer_moments` and `own_moments` are when
/// the same moments were. The median; 0 for none.
int64_t clock_offset(const std::vector<int64_t>& peer_moments,
                     const std::vector<int64_t>& own_moments);

/// The step of median duration (by rank 0) alone, its begin at 0. Nothing if
/// no step was recorded.
std::vector<RankTrace> typical_step(const std::vector<RankTrace>& ranks);

/// The same of every rank's own, without gathering all that was recorded: on
/// every rank, by the clock of rank 0. Of a rank with more than 2000 spans in
/// the step, the longest ones. Collective.
std::vector<RankTrace> gather_typical_step(const World& world, RankTrace own);

nlohmann::json to_json(const RankTrace& trace);
/// Reads what to_json() wrote. Throws IoError.
RankTrace rank_trace_from_json(const nlohmann::json& json);

}  // namespace lockstep::train
