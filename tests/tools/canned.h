#pragma once

#include <string>
#include <vector>

#include "lockstep/tools/comparison/comparison.h"

namespace lockstep::tools {

/// Returns a round of `strategy` as a process would have measured it: an mlp at
/// batch 64 on `devices` devices.
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
  report.shards = static_cast<int64_t>(devices);
  report.intra_op_threads = devices == 1 ? 2 : 1;  // of a host with two cores
  report.steps = static_cast<int64_t>(step_times_s.size());
  report.memory_shared_bytes = 50 << 20;
  report.parameter_bytes = 4 * report.parameters;
  report.optimizer_state_bytes = 4 * report.parameters;
  report.step_time_s = training::summarize(step_times_s);
  for (const double seconds : step_times_s) report.total_time_s += seconds;
  for (size_t k = 0; k < devices; ++k) {
    report.split.push_back(64 / static_cast<int64_t>(devices));
    report.devices.push_back({.name = "cpu:" + std::to_string(k),
                              .samples = 64,
                              .busy_fraction = 0.9,
                              .memory_peak_bytes = 8 << 20});
  }
  // A tenth of the step is outside of all phases.
  report.phases_s.forward = 0.2 * report.step_time_s.mean;
  report.phases_s.backward = 0.5 * report.step_time_s.mean;
  report.phases_s.update = 0.2 * report.step_time_s.mean;
  result.step_times_s = step_times_s;
  return result;
}

/// Returns three rounds that differ by a percent.
inline std::vector<Measurement> three_rounds(const std::string& strategy,
                                             double step_s,
                                             size_t devices = 2) {
  return {canned_round(strategy, {step_s}, devices),
          canned_round(strategy, {0.99 * step_s}, devices),
          canned_round(strategy, {1.01 * step_s}, devices)};
}

/// Returns single with 30 ms, dp-classic with 40 ms and a full first device, dp
/// with 20 ms, and DDP with 50.
inline Comparison canned_comparison() {
  Comparison comparison;
  comparison.runs = {
      pool(kLockstep, three_rounds("single", 0.030, 1)),
      pool(kLockstep, three_rounds("dp-classic", 0.040)),
      pool(kLockstep, three_rounds("dp", 0.020)),
      pool(kPyTorch, three_rounds("ddp", 0.050)),
  };
  auto& classic = comparison.runs[1].report;
  classic.devices[0].memory_peak_bytes = 120 << 20;
  classic.devices[1].memory_peak_bytes = 40 << 20;
  classic.devices[1].busy_fraction = 0.5;
  classic.memory_shared_bytes = 0;
  classic.parameter_bytes = 8 * classic.parameters;
  classic.phases_s = {.replicate = 0.010,
                      .forward = 0.010,
                      .backward = 0.010,
                      .reduce = 0.008,
                      .update = 0.002};
  comparison.runs[3].report.devices.clear();
  comparison.runs[3].report.phases_s = {};
  comparison.steps = 30;
  comparison.warmup = 5;
  comparison.rounds = 3;
  comparison.machine = {.cores = 2, .cpu_model = "A <fast> CPU"};
  relate(comparison);
  return comparison;
}

}  // namespace lockstep::tools
