#include "lockstep/report/run_curves.h"

#include <fmt/format.h>

#include "lockstep/report/comparison.h"

namespace lockstep::report {

std::vector<std::pair<int64_t, double>> losses_by_step(
    const train::RunReport& report) {
  std::vector<std::pair<int64_t, double>> losses;
  int64_t step = report.first_step;
  auto skipped = report.skipped_at.begin();
  for (const double loss : report.losses) {
    ++step;
    while (skipped != report.skipped_at.end() && *skipped == step) {
      ++step;
      ++skipped;
    }
    losses.emplace_back(step, loss);
  }
  return losses;
}

std::vector<train::EvaluationReport> evaluations_of(
    const train::RunReport& report) {
  auto all = report.evaluations;
  all.push_back({.step = report.steps, .test = report.test});
  std::erase_if(all, [](const train::EvaluationReport& evaluation) {
    return evaluation.test.samples == 0;
  });
  return all;
}

std::string device_label(const train::RunReport& report, size_t device) {
  if (device >= report.devices.size()) return fmt::format("device {}", device);
  const std::string& name = report.devices[device].name;
  return has_ranks(report.strategy) ? fmt::format("rank {} {}", device, name)
                                    : name;
}

}  // namespace lockstep::report
