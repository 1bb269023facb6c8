#include "lockstep/tools/comparison/comparison.h"

#include <algorithm>
#include <filesystem>
#include <functional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/cores.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/median.h"
#include "lockstep/base/printable.h"
#include "lockstep/train/report/run_environment.h"

namespace lockstep::tools {
namespace {

using training::RunReport;

// Returns the median over the rounds of the values that `field` reads.
double over_rounds(const std::vector<Measurement>& rounds,
                   const std::function<double(const RunReport&)>& field) {
  std::vector<double> values;
  for (const auto& round : rounds) values.push_back(field(round.report));
  return median(std::move(values));
}

// Returns the round with the median step time, or the faster of the two middle
// rounds if their number is even.
const Measurement& median_round(const std::vector<Measurement>& rounds) {
  std::vector<std::pair<double, size_t>> order;
  for (const auto& round : rounds) {
    order.emplace_back(median(round.step_times_s), order.size());
  }
  std::ranges::sort(order);
  return rounds[order[(order.size() - 1) / 2].second];
}

// Returns the name of the strategy in ratios: "dp_classic", "pytorch_ddp".
std::string key(const ComparedRun& run) {
  std::string name = run.report.strategy;
  std::replace(name.begin(), name.end(), '-', '_');
  if (run.engine == kPyTorch) name = "pytorch_" + name;
  return run.copy > 1 ? fmt::format("{}_{}", name, run.copy) : name;
}

bool is(const ComparedRun& run, const char* engine, const char* strategy) {
  return run.engine == engine && run.report.strategy == strategy;
}

// Returns the name of a run's folder: "first" for runs/first, runs/first/ and
// runs/first/run.json, and also for first.json.
std::string folder_name(const std::string& path) {
  std::filesystem::path named = std::filesystem::absolute(path);
  if (!named.has_filename()) named = named.parent_path();
  if (named.filename() == "run.json") return named.parent_path().filename();
  return named.extension() == ".json" ? named.stem() : named.filename();
}

// Names runs of the same strategy by their folders, if these differ.
void name_by_folders(std::vector<ComparedRun>& runs,
                     const std::vector<std::string>& paths) {
  if (paths.size() != runs.size()) return;
  for (size_t i = 0; i < runs.size(); ++i) {
    const std::string folder = folder_name(paths[i]);
    bool has_twin = false, is_unique = true;
    for (size_t k = 0; k < runs.size(); ++k) {
      const bool is_twin =
          k != i && runs[k].report.strategy == runs[i].report.strategy;
      has_twin = has_twin || is_twin;
      is_unique = is_unique && !(is_twin && folder_name(paths[k]) == folder);
    }
    if (has_twin && is_unique) runs[i].folder = printable_line(folder, 40);
  }
}

bool is_same_work(const ComparedRun& run, const ComparedRun& other) {
  return differences_of_work(run.report, other.report).empty();
}

// Adds a note, or throws, if run number `index` did different work than the
// baseline.
void note_different_work(Comparison& comparison, size_t index,
                         DifferentWork different,
                         const std::vector<std::string>& names) {
  const size_t base = *comparison.baseline;
  const auto& runs = comparison.runs;
  const auto differences =
      differences_of_work(runs[base].report, runs[index].report);
  if (differences.empty()) return;
  const std::string list = fmt::format("{}", fmt::join(differences, ", "));
  if (different == DifferentWork::kAllowed) {
    comparison.notes.push_back(fmt::format(
        "{} and {} did different work ({}): there is no speed-up of one over "
        "the other.",
        runs[base].label(), runs[index].label(), list));
    return;
  }
  const auto name = [&](size_t i) {
    return i < names.size() ? names[i] : runs[i].label();
  };
  throw InvalidArgument(
      "compare",
      {.code = ErrorCode::kBadOption,
       .what =
           fmt::format("{} and {} did different work", name(base), name(index)),
       .expected = "runs of the same model, parameters, batch size, tokens and "
                   "precision",
       .got = list,
       .fix = "compare runs of the same work, or see their figures side by "
              "side, without a speed-up, with --allow-different-work"});
}

}  // namespace

std::string ComparedRun::label() const {
  std::string name = report.strategy;
  if (engine == kPyTorch) name = "PyTorch " + (name == "ddp" ? "DDP" : name);
  if (!folder.empty()) return fmt::format("{} ({})", name, folder);
  return copy > 1 ? fmt::format("{} #{}", name, copy) : name;
}

bool ComparedRun::is_ideal() const { return is(*this, kPyTorch, "ideal"); }

ComparedRun pool(const std::string& engine,
                 const std::vector<Measurement>& rounds) {
  if (rounds.empty()) {
    throw InvalidArgument("compare", {.code = ErrorCode::kMalformedData,
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
  report.step_time_percentiles_s = training::percentiles(all_steps);
  report.step_time_s = training::summarize(std::move(all_steps));
  report.total_time_s =
      over_rounds(rounds, [](const RunReport& r) { return r.total_time_s; });
  report.samples_per_s =
      report.step_time_s.median > 0
          ? static_cast<double>(report.batch_size) / report.step_time_s.median
          : 0;
  for (size_t k = 0; k < report.devices.size(); ++k) {
    const auto device_value = [&](auto member) {
      return over_rounds(rounds, [&](const RunReport& r) {
        return static_cast<double>(r.devices.at(k).*member);
      });
    };
    auto& device = report.devices[k];
    device.busy_fraction = device_value(&training::DeviceReport::busy_fraction);
    device.memory_peak_bytes = static_cast<int64_t>(
        device_value(&training::DeviceReport::memory_peak_bytes));
  }
  // Means over the same steps as step_time_s.mean, so that they add up to it.
  for (const Phase& phase : kPhases) {
    double sum = 0;
    size_t steps = 0;
    for (const auto& round : rounds) {
      sum += round.report.phases_s.*phase.seconds *
             static_cast<double>(round.step_times_s.size());
      steps += round.step_times_s.size();
    }
    report.phases_s.*phase.seconds =
        steps > 0 ? sum / static_cast<double>(steps) : 0;
  }
  std::vector<StepLimit> limits;
  for (const auto& round : rounds) {
    if (round.limit) limits.push_back(*round.limit);
  }
  run.limit = pool_limits(limits, report.step_time_s.median);
  return run;
}

SpeedRatio speed_over(const ComparedRun& run, const ComparedRun& other,
                      double confidence) {
  if (run.round_medians_s.size() != other.round_medians_s.size()) {
    return speed_ratio({&run.report.step_time_s.median, 1},
                       {&other.report.step_time_s.median, 1}, confidence);
  }
  return speed_ratio(run.round_medians_s, other.round_medians_s, confidence);
}

const ComparedRun* find_run(const Comparison& comparison, const char* engine,
                            const char* strategy) {
  const auto found = std::ranges::find_if(
      comparison.runs,
      [&](const ComparedRun& run) { return is(run, engine, strategy); });
  return found == comparison.runs.end() ? nullptr : &*found;
}

void relate(Comparison& comparison) {
  auto& runs = comparison.runs;
  comparison.ratios.clear();
  comparison.baseline.reset();
  if (runs.empty()) return;
  const auto single = std::ranges::find_if(runs, [](const ComparedRun& run) {
    return is(run, kLockstep, "single");
  });
  const auto base = single == runs.end() ? runs.begin() : single;
  comparison.baseline = static_cast<size_t>(base - runs.begin());
  for (auto& run : runs) {
    run.speedup.reset();
    if (!is_same_work(run, *base)) continue;
    run.speedup = speed_over(run, *base, comparison.confidence);
    // The baseline has no interval, because its ratio to itself is exactly 1.
    if (&run == &*base) run.speedup->interval.reset();
  }

  for (const auto& run : runs) {
    if (run.engine == kPyTorch) continue;
    for (const auto& other : runs) {
      const bool is_fair_base =
          other.engine == kPyTorch || is(other, kLockstep, "single");
      if (&other == &run || !is_fair_base || !is_same_work(run, other)) {
        continue;
      }
      comparison.ratios.emplace_back(
          key(run) + "_vs_" + key(other),
          speed_over(run, other, comparison.confidence));
    }
  }
}

bool has_speedup_intervals(const Comparison& comparison) {
  return std::ranges::any_of(comparison.runs, [](const ComparedRun& run) {
    return run.speedup && run.speedup->interval;
  });
}

Comparison compare_runs(const std::vector<training::RunReport>& reports,
                        DifferentWork different,
                        const std::vector<std::string>& names) {
  Comparison comparison;
  auto& runs = comparison.runs;
  for (const auto& report : reports) {
    const auto earlier =
        std::ranges::count_if(runs, [&](const ComparedRun& run) {
          return run.report.strategy == report.strategy;
        });
    ComparedRun run{.engine = kLockstep, .report = report};
    run.round_medians_s = {report.step_time_s.median};
    run.time_line = report.time_line;
    run.copy = static_cast<int>(earlier) + 1;
    runs.push_back(std::move(run));
    comparison.steps = std::max(comparison.steps, report.steps);
  }
  name_by_folders(runs, names);
  comparison.is_of_files = true;
  comparison.machine = this_machine();
  relate(comparison);
  for (size_t i = 0; i < runs.size(); ++i) {
    note_different_work(comparison, i, different, names);
  }
  for (const auto& run : runs) {
    const RunReport& report = run.report;
    if (outside_phases(report)) continue;
    comparison.notes.push_back(fmt::format(
        "The phases of {} take {} together, but its mean step {}: they are of "
        "other steps, or of a version whose phases overlapped.",
        run.label(), format_duration(total(report.phases_s)),
        format_duration(report.step_time_s.mean)));
  }
  return comparison;
}

Machine this_machine() {
  return {.cores = static_cast<int>(allowed_cores().size()),
          .cpu_model = training::cpu_model()};
}

}  // namespace lockstep::tools
