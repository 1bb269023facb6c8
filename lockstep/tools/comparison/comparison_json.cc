#include <fmt/format.h>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/tools/comparison/comparison.h"

namespace lockstep::tools {

using nlohmann::json;

namespace {

constexpr size_t kMaxReportBytes = 256 << 20;

training::RunReport read_run(const std::string& path) {
  const std::string text = read_file(path, kMaxReportBytes);
  const auto content = try_parse_json(text);
  if (content.is_discarded()) {
    throw IoError({.code = ErrorCode::kMalformedData,
                   .what = path + " is not JSON",
                   .expected = "a run.json that `lockstep train` wrote"});
  }
  try {
    return training::run_report_from_json(content);
  } catch (const Error& error) {
    throw IoError({.code = ErrorCode::kMalformedData,
                   .what = fmt::format("{}: {}", path, error.text())});
  }
}

json to_json(const std::optional<Interval>& interval) {
  if (!interval) return nullptr;
  return {{"low", interval->low}, {"high", interval->high}};
}

// Returns the load of all rounds together, and the cores that other processes
// used in each round.
json to_json(const std::vector<MachineLoad>& loads) {
  if (loads.empty()) return nullptr;
  MachineLoad all;
  json other_cores = json::array();
  for (const MachineLoad& load : loads) {
    all += load;
    other_cores.push_back(load.other_cores());
  }
  return {{"cores", all.cores},
          {"seconds", all.seconds},
          {"other_cores", all.other_cores()},
          {"stolen_cores", all.stolen_cores()},
          {"waiting_fraction", all.waiting_s && all.seconds > 0
                                   ? json(*all.waiting_s / all.seconds)
                                   : json()},
          {"other_cores_of_rounds", std::move(other_cores)},
          {"is_busy", all.is_busy()}};
}

json to_json(const std::vector<training::RankTrace>& ranks) {
  json list = json::array();
  for (const auto& rank : ranks) list.push_back(training::to_json(rank));
  return list;
}

}  // namespace

json to_json(const Comparison& comparison) {
  json runs = json::array();
  for (const auto& run : comparison.runs) {
    json entry = training::to_json(run.report);
    entry["engine"] = run.engine;
    entry["round_medians_s"] = run.round_medians_s;
    entry["speedup"] = run.speedup ? json(run.speedup->times) : json();
    entry["speedup_interval"] =
        run.speedup ? to_json(run.speedup->interval) : json();
    const auto rest_s = outside_phases(run.report);
    entry["phases_s"]["other"] = rest_s ? json(*rest_s) : json();
    entry["time_line"] = to_json(run.time_line);
    entry["limit"] = run.limit ? to_json(*run.limit) : json();
    runs.push_back(std::move(entry));
  }
  json ratios = json::object();
  json intervals = json::object();
  for (const auto& [name, ratio] : comparison.ratios) {
    ratios[name] = ratio.times;
    intervals[name] = to_json(ratio.interval);
  }
  return {{"runs", std::move(runs)},
          {"ratios", std::move(ratios)},
          {"ratio_intervals", std::move(intervals)},
          {"interval_confidence", comparison.confidence},
          {"verdict_confidence", 1 - kVerdictError},
          {"machine_load", to_json(comparison.loads)},
          {"baseline", comparison.baseline
                           ? json(comparison.runs[*comparison.baseline].label())
                           : json()},
          {"machine",
           {{"cores", comparison.machine.cores},
            {"cpu_model", comparison.machine.cpu_model}}},
          {"rounds", comparison.rounds},
          {"steps", comparison.steps},
          {"warmup", comparison.warmup},
          {"notes", comparison.notes}};
}

json to_json(const Measurement& measurement) {
  json result = training::to_json(measurement.report);
  result["step_times_s"] = measurement.step_times_s;
  result["time_line"] = to_json(measurement.time_line);
  result["limit"] = measurement.limit ? to_json(*measurement.limit) : json();
  return result;
}

Measurement measurement_from_json(const json& json) {
  Measurement result{.report = training::run_report_from_json(json)};
  const auto times = json.find("step_times_s");
  if (times == json.end() || !times->is_array() || times->empty()) {
    throw IoError({.code = ErrorCode::kMalformedData,
                   .what = "a measurement has no 'step_times_s'",
                   .expected = "a list of seconds"});
  }
  for (const auto& time : *times) {
    if (!time.is_number()) {
      throw IoError({.code = ErrorCode::kMalformedData,
                     .what = "'step_times_s' holds what is not a number",
                     .got = time.dump()});
    }
    result.step_times_s.push_back(time.get<double>());
  }
  for (const auto& rank : json.value("time_line", json::array())) {
    result.time_line.push_back(training::rank_trace_from_json(rank));
  }
  const auto limit = json.find("limit");
  if (limit != json.end() && !limit->is_null()) {
    result.limit = step_limit_from_json(*limit);
  }
  return result;
}

Comparison compare_run_files(const std::vector<std::string>& paths,
                             DifferentWork different) {
  std::vector<training::RunReport> reports;
  for (const auto& path : paths) reports.push_back(read_run(path));
  return compare_runs(reports, different, paths);
}

}  // namespace lockstep::tools
