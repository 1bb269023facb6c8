#include "lockstep/report/tensorboard.h"

#include <algorithm>
#include <map>

#include "lockstep/report/comparison/run_values.h"
#include "lockstep/train/record/tensorboard_log.h"

namespace lockstep::report {
namespace {

using training::Metrics;
using training::RunReport;

/// Scalars by step, so that they are written in the order of steps.
using Scalars = std::map<int64_t, Metrics>;

void add_steps(const RunReport& report, Scalars& scalars) {
  for (const auto& [step, loss] : losses_by_step(report)) {
    scalars[step]["train/loss"] = loss;
  }
  const auto& times = report.step_times;
  for (size_t i = 0; i < times.steps.size(); ++i) {
    scalars[times.steps[i]]["step_ms"] = 1e3 * times.seconds[i];
  }
}

// A report does not contain the steps at which epochs ended, so the steps are
// divided evenly among the epochs. The result is slightly off if the last epoch
// is incomplete.
void add_epochs(const RunReport& report, Scalars& scalars) {
  const auto epochs = static_cast<int64_t>(report.epochs.size());
  if (epochs == 0) return;
  const int64_t steps = report.steps - report.first_step;
  for (int64_t i = 0; i < epochs; ++i) {
    const auto& epoch = report.epochs[static_cast<size_t>(i)];
    const int64_t step = report.first_step + steps * (i + 1) / epochs;
    for (const auto& [name, value] : epoch.train) {
      scalars[step]["epoch/" + name] = value;
    }
    scalars[report.first_step + steps * i / epochs + 1]["lr"] = epoch.lr;
  }
}

void add_evaluations(const RunReport& report, Scalars& scalars) {
  for (const auto& [step, test] : evaluations_of(report)) {
    for (const auto& [name, value] : test.metrics) {
      scalars[step]["test/" + name] = value;
    }
  }
}

void add_memory(const RunReport& report, Scalars& scalars) {
  const auto& memory = report.memory;
  for (size_t k = 0; k < memory.held_bytes.size(); ++k) {
    const std::string tag = "memory_mib/" + device_label(report, k);
    for (size_t i = 0; i < memory.steps.size(); ++i) {
      scalars[memory.steps[i]][tag] =
          static_cast<double>(memory.held_bytes[k][i]) / (1 << 20);
    }
  }
}

}  // namespace

std::string write_tensorboard(const RunReport& report,
                              const std::string& folder) {
  Scalars scalars;
  add_steps(report, scalars);
  add_epochs(report, scalars);
  add_evaluations(report, scalars);
  add_memory(report, scalars);
  training::EventFile file(folder);
  file.begin(report.first_step, report.started_at);
  const double steps = static_cast<double>(
      std::max<int64_t>(report.steps - report.first_step, 1));
  for (const auto& [step, metrics] : scalars) {
    // All steps are assumed to take the same time.
    const double share = static_cast<double>(step - report.first_step) / steps;
    file.write_scalars(step, report.started_at + share * report.total_time_s,
                       "", metrics);
  }
  return file.path();
}

}  // namespace lockstep::report
