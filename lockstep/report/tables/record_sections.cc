#include <algorithm>
#include <ctime>
#include <set>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/terminal.h"
#include "lockstep/report/comparison/run_values.h"
#include "lockstep/report/tables/comparison_sections.h"

namespace lockstep::report {
namespace {

using train::Environment;
using train::RunReport;

// Tables with more rows show only the first and the last ones.
constexpr size_t kMostEpochs = 60;

/// A row of a table: its name, and a function that returns a run's value.
template <class From>
using Fact = std::pair<const char*, std::string (*)(const From&)>;

std::string count(int64_t number) { return format_count(number); }

std::string time_text(double seconds) {
  // The largest time is the end of the year 9999.
  if (!(seconds > 0 && seconds < 253'402'300'799.0)) return "-";
  return fmt::format("{:%Y-%m-%d %H:%M:%S} UTC",
                     fmt::gmtime(static_cast<std::time_t>(seconds)));
}

const std::vector<Fact<RunReport>>& work_facts() {
  static const std::vector<Fact<RunReport>> facts{
      {"Strategy", [](const RunReport& r) { return r.strategy; }},
      {"Model", [](const RunReport& r) { return r.model; }},
      {"Parameters", [](const RunReport& r) { return count(r.parameters); }},
      {"Samples of a batch",
       [](const RunReport& r) { return count(r.batch_size); }},
      {"Devices", [](const RunReport& r) { return count(r.world_size); }},
      {"Processes", [](const RunReport& r) { return count(r.processes); }},
      {"Shards", [](const RunReport& r) { return count(r.shards); }},
      {"Threads of a shard",
       [](const RunReport& r) { return count(r.intra_op_threads); }},
      {"Steps",
       [](const RunReport& r) {
         return r.first_step > 0
                    ? fmt::format("{} to {}", count(r.first_step + 1),
                                  count(r.steps))
                    : count(r.steps);
       }},
      {"Started", [](const RunReport& r) { return time_text(r.started_at); }},
      {"Lockstep", [](const RunReport& r) { return r.lockstep; }},
      {"SHA-256 of the parameters",
       [](const RunReport& r) {
         return r.parameter_sha256.empty() ? "-" : r.parameter_sha256;
       }},
  };
  return facts;
}

const std::vector<Fact<Environment>>& environment_facts() {
  static const std::vector<Fact<Environment>> facts{
      {"Host", [](const Environment& e) { return or_dash(e.host); }},
      {"System", [](const Environment& e) { return or_dash(e.os); }},
      {"Kernel", [](const Environment& e) { return or_dash(e.kernel); }},
      {"Processor", [](const Environment& e) { return or_dash(e.cpu_model); }},
      {"Cores that may be used",
       [](const Environment& e) { return count(e.cores); }},
      {"Memory",
       [](const Environment& e) {
         return format_bytes(static_cast<double>(e.memory_bytes));
       }},
      {"GPUs",
       [](const Environment& e) {
         return e.gpus.empty() ? "none"
                               : fmt::format("{}", fmt::join(e.gpus, "; "));
       }},
      {"LibTorch",
       [](const Environment& e) {
         return fmt::format("{}, kernels for {}", or_dash(e.torch),
                            or_dash(e.cpu_capability));
       }},
      {"Compiler", [](const Environment& e) { return or_dash(e.compiler); }},
      {"Variables",
       [](const Environment& e) {
         std::string text;
         for (const auto& [name, value] : e.variables) {
           text +=
               fmt::format("{}{}={}", text.empty() ? "" : "; ", name, value);
         }
         return text.empty() ? "none that matters" : text;
       }},
  };
  return facts;
}

// Returns the names of the metrics that any of the runs has. The loss comes
// first.
std::vector<std::string> names_of(
    const std::vector<const train::Metrics*>& all) {
  std::set<std::string> names;
  for (const auto* metrics : all) {
    for (const auto& [name, value] : *metrics) names.insert(name);
  }
  std::vector<std::string> result;
  if (names.erase("loss") > 0) result.emplace_back("loss");
  result.insert(result.end(), names.begin(), names.end());
  return result;
}

std::string metric_cell(const train::Metrics& metrics,
                        const std::string& name) {
  const auto found = metrics.find(name);
  if (found == metrics.end()) return "-";
  return name == "accuracy" ? fmt::format("{:.2f} %", 100 * found->second)
                            : fmt::format("{:.4g}", found->second);
}

// Removes the middle rows of a table that is too long.
void shorten(Section& section) {
  auto& rows = section.rows;
  if (rows.size() <= kMostEpochs) return;
  const auto cut = static_cast<ptrdiff_t>(kMostEpochs / 2);
  std::vector<std::string> gap(section.header.size(), "-");
  gap.front() =
      counted(static_cast<int64_t>(rows.size() - kMostEpochs), "row") +
      " left out";
  rows.erase(rows.begin() + cut, rows.end() - cut);
  rows.insert(rows.begin() + cut, std::move(gap));
}

bool is_known(const Environment& environment) {
  return !environment.host.empty();
}

}  // namespace

Section work_section(const Comparison& comparison) {
  Section section{.title = "What was trained", .header = {"Fact"}, .rows = {}};
  for (const auto& run : comparison.runs) {
    section.header.push_back(run.label());
  }
  for (const auto& [name, fact] : work_facts()) {
    std::vector<std::string> row{name};
    for (const auto& run : comparison.runs) row.push_back(fact(run.report));
    section.rows.push_back(std::move(row));
  }
  return section;
}

Section epoch_section(const Comparison& comparison) {
  std::vector<const train::Metrics*> all;
  for (const auto& run : comparison.runs) {
    for (const auto& epoch : run.report.epochs) all.push_back(&epoch.train);
  }
  const auto names = names_of(all);
  Section section{.title = "Epochs",
                  .header = {"Run", "Epoch", "Learning rate"},
                  .rows = {}};
  section.header.insert(section.header.end(), names.begin(), names.end());
  for (const auto& run : comparison.runs) {
    for (const auto& epoch : run.report.epochs) {
      std::vector<std::string> row{run.label(), count(epoch.epoch),
                                   fmt::format("{:.4g}", epoch.lr)};
      for (const auto& name : names) {
        row.push_back(metric_cell(epoch.train, name));
      }
      section.rows.push_back(std::move(row));
    }
  }
  shorten(section);
  return section;
}

Section evaluation_section(const Comparison& comparison) {
  std::vector<const train::Metrics*> all;
  for (const auto& run : comparison.runs) {
    for (const auto& at : run.report.evaluations) {
      all.push_back(&at.test.metrics);
    }
    all.push_back(&run.report.test.metrics);
  }
  const auto names = names_of(all);
  Section section{.title = "Evaluations",
                  .header = {"Run", "After step", "Samples"},
                  .rows = {}};
  section.header.insert(section.header.end(), names.begin(), names.end());
  for (const auto& run : comparison.runs) {
    for (const auto& [step, test] : evaluations_of(run.report)) {
      std::vector<std::string> row{run.label(), count(step),
                                   count(test.samples)};
      for (const auto& name : names) {
        row.push_back(metric_cell(test.metrics, name));
      }
      section.rows.push_back(std::move(row));
    }
  }
  shorten(section);
  return section;
}

Section environment_section(const Environment& environment) {
  Section section{
      .title = "Machine and software", .header = {"Fact", "Value"}, .rows = {}};
  for (const auto& [name, fact] : environment_facts()) {
    section.rows.push_back({name, fact(environment)});
  }
  return section;
}

Section environment_section(const Comparison& comparison) {
  Section section{
      .title = "Machine and software", .header = {"Fact"}, .rows = {}};
  std::vector<std::pair<std::vector<std::string>, std::string>> columns;
  for (const auto& run : comparison.runs) {
    if (!is_known(run.report.environment)) continue;
    std::vector<std::string> values;
    for (const auto& [name, fact] : environment_facts()) {
      values.push_back(fact(run.report.environment));
    }
    const auto same = std::find_if(
        columns.begin(), columns.end(),
        [&](const auto& column) { return column.first == values; });
    if (same == columns.end()) {
      columns.emplace_back(std::move(values), run.label());
    } else {
      same->second += ", " + run.label();
    }
  }
  if (columns.empty()) return section;
  for (const auto& [values, runs] : columns) section.header.push_back(runs);
  for (size_t i = 0; i < environment_facts().size(); ++i) {
    std::vector<std::string> row{environment_facts()[i].first};
    for (const auto& [values, runs] : columns) row.push_back(values[i]);
    section.rows.push_back(std::move(row));
  }
  return section;
}

}  // namespace lockstep::report
