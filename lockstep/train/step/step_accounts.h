#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/engine.h"
#include "lockstep/train/run_report.h"
#include "lockstep/train/step/step_strategy.h"
#include "lockstep/train/training_plan.h"

namespace lockstep::training {

/// The time and memory that a device used since the run began.
struct DeviceUse {
  std::string name;
  double busy_s = 0;
  int64_t memory_bytes = 0;       ///< of tensors and of cached blocks
  int64_t tensor_bytes = 0;       ///< only of tensors
  int64_t memory_peak_bytes = 0;  ///< peak of tensor_bytes
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
std::vector<RankReport> gather_reports(const ProcessGroup& world,
                                       const RankReport& own);

/// The accounts of a rank over its steps: samples, time, memory, bytes sent.
class StepAccounts {
 public:
  /// All arguments must outlive this object.
  StepAccounts(Engine& engine, StepStrategy& strategy, const Plan& plan,
               const ProcessGroup& world);

  /// Begins again: what came before was warm-up.
  void restart();
  /// Adds the step that was just made, on `samples` samples of the ranks that
  /// the engine knows.
  void count(int64_t samples);
  std::vector<DeviceUse> device_use() const;
  /// Returns what this rank did. `step_seconds`: time in all steps.
  RankReport report(double step_seconds) const;

 private:
  Engine& engine_;
  StepStrategy& strategy_;
  const Plan& plan_;
  const ProcessGroup& world_;
  std::vector<int64_t> samples_;  // by device
  PhaseReport phases_s_;          // sums over the steps
  int64_t steps_ = 0;
  int64_t sent_before_ = 0;  // bytes sent before the accounts began
};

}  // namespace lockstep::training
