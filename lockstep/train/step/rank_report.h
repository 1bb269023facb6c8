#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/comm/world.h"
#include "lockstep/train/run_report.h"

namespace lockstep::train {

/// The time and memory that a device used since the run began.
struct DeviceUse {
  std::string name;
  double busy_s = 0;
  int64_t memory_bytes = 0;
  int64_t memory_peak_bytes = 0;
};

/// The part of a run's report that one rank knows.
struct RankReport {
  std::vector<DeviceReport> devices;
  PhaseReport phases_s;
  int64_t pid = 0;
  int64_t sent_bytes = 0;         ///< bytes sent by the steps
  double peak_flops_per_s = 0;    ///< all its devices together; 0: not measured
  int64_t host_memory_bytes = 0;  ///< process memory charged to no device
};

/// Returns every rank's report, on every rank.
std::vector<RankReport> gather_reports(const World& world,
                                       const RankReport& own);

}  // namespace lockstep::train
