#include "lockstep/tools/comparison/run_values.h"

#include <algorithm>

#include <fmt/format.h>

namespace lockstep::tools {
namespace {

std::string known(int64_t value) {
  return value > 0 ? std::to_string(value) : "";
}

}  // namespace

const std::vector<std::string>& own_loops() {
  static const std::vector<std::string> names{kDpLoop, kDdpLoop, kDpLoopUnfused,
                                              kDdpLoopUnfused};
  return names;
}

bool has_ranks(const std::string& strategy) {
  return strategy == "ddp" || strategy == kDdpLoop ||
         strategy == kDdpLoopUnfused;
}

std::string device_label(const training::RunReport& report, size_t device) {
  if (device >= report.devices.size()) return fmt::format("device {}", device);
  const std::string& name = report.devices[device].name;
  return has_ranks(report.strategy) ? fmt::format("rank {} {}", device, name)
                                    : name;
}

double total(const training::PhaseReport& phases) {
  double sum = 0;
  for (const Phase& phase : kPhases) sum += phases.*phase.seconds;
  return sum;
}

std::optional<double> outside_phases(const training::RunReport& report) {
  // Reading the clock between the phases takes time too.
  constexpr double kTolerance = 0.001;
  const double rest_s = report.step_time_s.mean - total(report.phases_s);
  if (rest_s < -kTolerance * report.step_time_s.mean) return std::nullopt;
  return std::max(rest_s, 0.0);
}

std::vector<std::pair<int64_t, double>> losses_by_step(
    const training::RunReport& report) {
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

std::vector<training::EvaluationReport> evaluations_of(
    const training::RunReport& report) {
  auto all = report.evaluations;
  all.push_back({.step = report.steps, .test = report.test});
  std::erase_if(all, [](const training::EvaluationReport& evaluation) {
    return evaluation.test.samples == 0;
  });
  return all;
}

std::vector<std::string> differences_of_work(
    const training::RunReport& first, const training::RunReport& second) {
  std::vector<std::string> differences;
  const auto compare = [&](const char* name, const std::string& a,
                           const std::string& b) {
    if (a.empty() || b.empty() || a == b) return;
    differences.push_back(fmt::format("{} {} and {}", name, a, b));
  };
  compare("model", first.model, second.model);
  compare("parameters", known(first.parameters), known(second.parameters));
  compare("batch_size", known(first.batch_size), known(second.batch_size));
  compare("tokens_of_sample", known(first.tokens_of_sample),
          known(second.tokens_of_sample));
  compare("precision", first.precision, second.precision);
  return differences;
}

}  // namespace lockstep::tools
