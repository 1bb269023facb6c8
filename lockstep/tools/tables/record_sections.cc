#include <algorithm>
#include <ctime>
#include <set>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/format.h"
#include "lockstep/tools/comparison/run_values.h"
#include "lockstep/tools/tables/comparison_sections.h"

namespace lockstep::tools {
namespace {

using Environment = training::RunEnvironment;
using training::RunReport;

// Tables with more rows show only the first and the last ones.
constexpr size_t kMaxEpochs = 60;

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
       [](const Environment& e) { return bytes_text(e.memory_bytes); }},
      {"Accelerators",
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

/// A column of a table of facts: its title, and where its values come from.
template <class From>
using Column = std::pair<std::string, const From*>;

// Leaves out facts that no column knows.
template <class From>
Section facts_section(const char* title, const std::vector<Fact<From>>& facts,
                      const std::vector<Column<From>>& columns) {
  Section section{.title = title, .header = {"Fact"}};
  for (const auto& [label, from] : columns) section.header.push_back(label);
  for (const auto& [name, fact] : facts) {
    std::vector<std::string> row{name};
    for (const auto& [label, from] : columns) row.push_back(fact(*from));
    const auto known = std::ranges::find_if(
        row.begin() + 1, row.end(),
        [](const std::string& cell) { return cell != "-"; });
    if (known != row.end()) section.rows.push_back(std::move(row));
  }
  return section;
}

Section environments_section(const std::vector<Column<Environment>>& columns) {
  return facts_section("Machine and software", environment_facts(), columns);
}

bool has_same_facts(const Environment& one, const Environment& other) {
  return std::ranges::all_of(environment_facts(), [&](const auto& fact) {
    return fact.second(one) == fact.second(other);
  });
}

std::string metric_cell(const training::Metrics& metrics,
                        const std::string& name) {
  const auto found = metrics.find(name);
  if (found == metrics.end()) return "-";
  return name == "accuracy" ? fmt::format("{:.2f} %", 100 * found->second)
                            : fmt::format("{:.4g}", found->second);
}

// Removes the middle rows of a table that is too long.
void shorten(Section& section) {
  auto& rows = section.rows;
  if (rows.size() <= kMaxEpochs) return;
  const auto cut = static_cast<ptrdiff_t>(kMaxEpochs / 2);
  std::vector<std::string> gap(section.header.size(), "-");
  gap.front() = counted(static_cast<int64_t>(rows.size() - kMaxEpochs), "row") +
                " left out";
  rows.erase(rows.begin() + cut, rows.end() - cut);
  rows.insert(rows.begin() + cut, std::move(gap));
}

/// A row of a table of metrics: its first cells, and the metrics after them.
using MetricsRow =
    std::pair<std::vector<std::string>, const training::Metrics*>;

// Returns a table with a column for each metric that a row has. The loss comes
// first.
Section metrics_section(const char* title, std::vector<std::string> header,
                        const std::vector<MetricsRow>& rows) {
  std::set<std::string> others;
  for (const auto& [cells, metrics] : rows) {
    for (const auto& [name, value] : *metrics) others.insert(name);
  }
  std::vector<std::string> names;
  if (others.erase("loss") > 0) names.emplace_back("loss");
  names.insert(names.end(), others.begin(), others.end());
  header.insert(header.end(), names.begin(), names.end());
  Section section{.title = title, .header = std::move(header)};
  for (auto [cells, metrics] : rows) {
    for (const auto& name : names) cells.push_back(metric_cell(*metrics, name));
    section.rows.push_back(std::move(cells));
  }
  shorten(section);
  return section;
}

}  // namespace

Section work_section(const Comparison& comparison) {
  std::vector<Column<RunReport>> columns;
  for (const auto& run : comparison.runs) {
    columns.emplace_back(run.label(), &run.report);
  }
  return facts_section("What was trained", work_facts(), columns);
}

Section epoch_section(const Comparison& comparison) {
  std::vector<MetricsRow> rows;
  for (const auto& run : comparison.runs) {
    for (const auto& epoch : run.report.epochs) {
      rows.push_back(
          {{run.label(), count(epoch.epoch), fmt::format("{:.4g}", epoch.lr)},
           &epoch.train});
    }
  }
  return metrics_section("Epochs", {"Run", "Epoch", "Learning rate"}, rows);
}

Section evaluation_section(const Comparison& comparison) {
  std::vector<std::vector<training::EvaluationReport>> evaluations;
  std::vector<MetricsRow> rows;
  for (const auto& run : comparison.runs) {
    evaluations.push_back(evaluations_of(run.report));
    for (const auto& [step, test] : evaluations.back()) {
      rows.push_back(
          {{run.label(), count(step), count(test.samples)}, &test.metrics});
    }
  }
  return metrics_section("Evaluations", {"Run", "After step", "Samples"}, rows);
}

Section environment_section(const Environment& environment) {
  return environments_section({{"Value", &environment}});
}

Section environment_section(const Comparison& comparison) {
  std::vector<Column<Environment>> columns;
  for (const auto& run : comparison.runs) {
    const Environment& own = run.report.environment;
    if (own.host.empty()) continue;  // not known
    const auto same = std::ranges::find_if(columns, [&](const auto& column) {
      return has_same_facts(*column.second, own);
    });
    if (same == columns.end()) {
      columns.emplace_back(run.label(), &own);
    } else {
      same->first += ", " + run.label();
    }
  }
  return columns.empty() ? Section{} : environments_section(columns);
}

}  // namespace lockstep::tools
