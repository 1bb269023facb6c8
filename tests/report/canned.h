#pragma once

#include <string>
#include <vector>

#include "lockstep/report/comparison.h"

namespace lockstep::report {

/// A round of `strategy`, as a process would have measured it: an mlp at batch
/// 64 on `devices` devices.
inline Measurement canned_round(const std::string& strategy,
                                const std::vector<double>& step_times_s,
                                size_t devices = 2) {
  Measurement result;
  auto& report = result.report;
  report.lockstep = "0.1.0";
  report.command = {"lockstep", "step-time"};
  report.strategy = strategy;
  report.model = "mlp";
  report.parameters = 6307850;
  report.world_size = static_cast<int64_t>(devices);
  report.batch_size = 64;
  report.steps = static_cast<int64_t>(step_times_s.size());
  report.memory_shared_bytes = 50 << 20;
  report.parameter_bytes = 4 * report.parameters;
  report.optimizer_state_bytes = 4 * report.parameters;
  report.step_time_s = train::summarize(step_times_s);
  for (const double seconds : step_times_s) report.total_time_s += seconds;
  for (size_t k = 0; k < devices; ++k) {
    report.split.push_back(64 / static_cast<int64_t>(devices));
    report.devices.push_back({.name = "cpu:" + std::to_string(k),
                              .samples = 64,
                              .busy_fraction = 0.9,
                              .memory_peak_bytes = 8 << 20});
  }
  // A tenth of the step is in no phase.
  report.phases_s.forward = 0.2 * report.step_time_s.mean;
  report.phases_s.backward = 0.5 * report.step_time_s.mean;
  report.phases_s.update = 0.2 * report.step_time_s.mean;
  result.step_times_s = step_times_s;
  return result;
}

}  // namespace lockstep::report
