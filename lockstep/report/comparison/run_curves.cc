#include "lockstep/report/comparison/run_curves.h"

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

}  // namespace lockstep::report
