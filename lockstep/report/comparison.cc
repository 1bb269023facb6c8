#include "lockstep/report/comparison.h"

#include <algorithm>
#include <functional>

#include <fmt/format.h>

#include "lockstep/base/cores.h"
#include "lockstep/base/error.h"
#include "lockstep/base/median.h"

namespace lockstep::report {
namespace {

using train::RunReport;

// The median over the rounds of what `field` reads.
double over_rounds(const std::vector<Measurement>& rounds,
                   const std::function<double(const RunReport&)>& field) {
  std::vector<double> values;
  for (const auto& round : rounds) values.push_back(field(round.report));
  return median(std::move(values));
}

// Of the two in the middle of an even number, the faster.
const Measurement& median_round(const std::vector<Measurement>& rounds) {
  std::vector<std::pair<double, size_t>> order;
  for (const auto& round : rounds) {
    order.emplace_back(median(round.step_times_s), order.size());
  }
  std::sort(order.begin(), order.end());
  return rounds[order[(order.size() - 1) / 2].second];
}

// What the strategy is called in ratios: "dp_classic", "pytorch_ddp".
std::string key(const ComparedRun& run) {
  std::string name = run.report.strategy;
  std::replace(name.begin(), name.end(), '-', '_');
  if (run.engine == kPyTorch) name = "pytorch_" + name;
  return run.copy > 1 ? fmt::format("{}_{}", name, run.copy) : name;
}

bool is(const ComparedRun& run, const char* engine, const char* strategy) {
  return run.engine == engine && run.report.strategy == strategy;
}

}  // namespace

std::string ComparedRun::label() const {
  std::string name = report.strategy;
  if (engine == kPyTorch) name = "PyTorch " + (name == "ddp" ? "DDP" : name);
  return copy > 1 ? fmt::format("{} #{}", name, copy) : name;
}

bool has_ranks(const std::string& strategy) {
  return strategy == "ddp" || strategy == kOwnLoop;
}

double total(const train::PhaseReport& phases) {
  double sum = 0;
  for (const Phase& phase : kPhases) sum += phases.*phase.seconds;
  return sum;
}

ComparedRun pool(const std::string& engine,
                 const std::vector<Measurement>& rounds) {
  if (rounds.empty()) {
    throw InvalidArgument("compare", {.code = ErrorCode::kMalformedJson,
                                      .what = "a strategy has no round"});
  }
  ComparedRun run{.engine = engine, .report = rounds.front().report};
  std::vector<double> all_steps;
  for (const auto& round : rounds) {
    const auto& steps = round.step_times_s;
    all_steps.insert(all_steps.end(), steps.begin(), steps.end());
    run.round_medians_s.push_back(median(steps));
  }
  run.time_line = median_round(rounds).time_line;
  RunReport& report = run.report;
  report.step_time_percentiles_s = train::percentiles(all_steps);
  report.step_time_s = train::summarize(std::move(all_steps));
  report.total_time_s =
      over_rounds(rounds, [](const RunReport& r) { return r.total_time_s; });
  report.samples_per_s =
      report.step_time_s.median > 0
          ? static_cast<double>(report.batch_size) / report.step_time_s.median
          : 0;
  for (size_t k = 0; k < report.devices.size(); ++k) {
    const auto of_device = [&](auto member) {
      return over_rounds(rounds, [&](const RunReport& r) {
        return static_cast<double>(r.devices.at(k).*member);
      });
    };
    auto& device = report.devices[k];
    device.busy_fraction = of_device(&train::DeviceReport::busy_fraction);
    device.memory_peak_bytes = static_cast<int64_t>(
        of_device(&train::DeviceReport::memory_peak_bytes));
  }
  for (const Phase& phase : kPhases) {
    report.phases_s.*phase.seconds = over_rounds(
        rounds, [&](const RunReport& r) { return r.phases_s.*phase.seconds; });
  }
  return run;
}

double times_as_fast(const ComparedRun& run, const ComparedRun& other) {
  const auto ratio = [](double ours, double theirs) {
    return ours > 0 ? theirs / ours : 0;
  };
  if (run.round_medians_s.size() != other.round_medians_s.size()) {
    return ratio(run.report.step_time_s.median,
                 other.report.step_time_s.median);
  }
  std::vector<double> ratios;
  for (size_t round = 0; round < run.round_medians_s.size(); ++round) {
    ratios.push_back(
        ratio(run.round_medians_s[round], other.round_medians_s[round]));
  }
  return median(std::move(ratios));
}

void relate(Comparison& comparison) {
  auto& runs = comparison.runs;
  comparison.ratios.clear();
  comparison.baseline.reset();
  if (runs.empty()) return;
  const auto single = std::find_if(
      runs.begin(), runs.end(),
      [](const ComparedRun& run) { return is(run, kLockstep, "single"); });
  const auto base = single == runs.end() ? runs.begin() : single;
  comparison.baseline = static_cast<size_t>(base - runs.begin());
  for (auto& run : runs) run.speedup = times_as_fast(run, *base);

  for (const auto& run : runs) {
    if (run.engine == kPyTorch) continue;
    for (const auto& other : runs) {
      const bool is_fair_base =
          other.engine == kPyTorch || is(other, kLockstep, "single");
      if (&other == &run || !is_fair_base) continue;
      comparison.ratios.emplace_back(key(run) + "_vs_" + key(other),
                                     times_as_fast(run, other));
    }
  }
}

Comparison compare_runs(const std::vector<train::RunReport>& reports) {
  Comparison comparison;
  for (const auto& report : reports) {
    auto& runs = comparison.runs;
    const auto earlier =
        std::count_if(runs.begin(), runs.end(), [&](const ComparedRun& run) {
          return run.report.strategy == report.strategy;
        });
    runs.push_back({.engine = kLockstep,
                    .report = report,
                    .round_medians_s = {report.step_time_s.median},
                    .time_line = report.time_line,
                    .speedup = std::nullopt,
                    .copy = static_cast<int>(earlier) + 1});
    const RunReport& first = runs.front().report;
    comparison.steps = std::max(comparison.steps, report.steps);
    if (report.model != first.model || report.batch_size != first.batch_size) {
      comparison.notes.push_back(fmt::format(
          "{} trained {} at batch {}, {} {} at batch {}: their step times are "
          "not of the same work.",
          runs.front().label(), first.model, first.batch_size,
          runs.back().label(), report.model, report.batch_size));
    }
  }
  comparison.is_of_files = true;
  comparison.machine = this_machine();
  relate(comparison);
  return comparison;
}

Machine this_machine() {
  return {.cores = static_cast<int>(allowed_cores().size()),
          .cpu_model = train::cpu_model()};
}

}  // namespace lockstep::report
