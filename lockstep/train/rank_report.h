#pragma once

#include <string>
#include <vector>

#include "lockstep/comm/world.h"
#include "lockstep/train/run_report.h"

namespace lockstep::train {

/// What one rank knows of a run.
struct RankReport {
  std::vector<DeviceReport> devices;
  PhaseReport phases_s;
  int64_t pid = 0;
  int64_t sent_bytes = 0;         ///< by the steps
  double peak_flops_per_s = 0;    ///< of its devices together; 0: not measured
  int64_t host_memory_bytes = 0;  ///< of its process, on no device's account
};

/// Every rank's report, on every rank.
std::vector<RankReport> gather_reports(const World& world,
                                       const RankReport& own);

}  // namespace lockstep::train
