#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <utility>

#include "lockstep/comm/process_group.h"
#include "lockstep/train/run_report.h"

namespace lockstep::training {

/// Returns rank 0's report of `run`, which is made by ranks that are threads.
inline RunReport report_of_ranks(
    int ranks, const std::string& backend,
    const std::function<RunReport(const ProcessGroup&)>& run) {
  ProcessGroupOptions options;
  options.backend(backend);
  options.timeout(std::chrono::seconds(100));
  RunReport first;
  spawn(
      ranks,
      [&](const ProcessGroup& world) {
        RunReport report = run(world);
        if (world.rank() == 0) first = std::move(report);
      },
      options);
  return first;
}

}  // namespace lockstep::training
