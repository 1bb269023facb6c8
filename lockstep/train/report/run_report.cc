#include "lockstep/train/run_report.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/inspect/recorded_topology.h"
#include "lockstep/train/report/environment.h"
#include "lockstep/train/report/run_records.h"

namespace lockstep::train {
namespace {

// Prefix of the keys of an epoch's metrics.
const std::string kTrainPrefix = "train_";

using nlohmann::json;

// Keeps keys in the order in which they are written, since people read
// run.json.
using Ordered = nlohmann::ordered_json;

// Returns a percentile as numpy.percentile does: linear between the two
// nearest.
double percentile(const std::vector<double>& sorted, double fraction) {
  const double position = fraction * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(position);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above],
                   position - static_cast<double>(below));
}

const json& member(const json& object, const char* key) {
  if (!object.is_object() || !object.contains(key)) {
    throw IoError(
        {.code = ErrorCode::kMalformedData,
         .what = "a run report lacks the key '" + std::string(key) + "'",
         .fix = "was it written by `lockstep train --report`?"});
  }
  return object.at(key);
}

template <class T>
void read(const json& object, const char* key, T& value) {
  const json& found = member(object, key);
  try {
    value = found.get<T>();
  } catch (const json::exception&) {
    throw IoError({.code = ErrorCode::kMalformedData,
                   .what = "a run report's key '" + std::string(key) +
                           "' has a value of the wrong type",
                   .got = found.dump().substr(0, 60)});
  }
}

// Reads a key that older versions did not write.
template <class T>
void read_if_known(const json& object, const char* key, T& value) {
  if (object.is_object() && object.contains(key)) read(object, key, value);
}

Ordered times_to_json(const TimeSummary& times) {
  return {{"median", times.median},
          {"p10", times.p10},
          {"p90", times.p90},
          {"mean", times.mean},
          {"min", times.min}};
}

Ordered phases_to_json(const PhaseReport& phases) {
  Ordered object = Ordered::object();
  for (const Phase& phase : kPhases) object[phase.name] = phases.*phase.seconds;
  return object;
}

Ordered devices_to_json(const std::vector<DeviceReport>& devices) {
  Ordered list = Ordered::array();
  for (const auto& device : devices) {
    list.push_back({{"name", device.name},
                    {"samples", device.samples},
                    {"busy_fraction", device.busy_fraction},
                    {"memory_peak_bytes", device.memory_peak_bytes},
                    {"gradient_copy_bytes", device.gradient_copy_bytes}});
  }
  return list;
}

Ordered epochs_to_json(const std::vector<EpochReport>& epochs) {
  Ordered list = Ordered::array();
  for (const auto& epoch : epochs) {
    Ordered object{{"epoch", epoch.epoch}, {"lr", epoch.lr}};
    for (const auto& [name, value] : loss_first(epoch.train)) {
      object[kTrainPrefix + name] = value;
    }
    list.push_back(std::move(object));
  }
  return list;
}

Ordered test_to_json(const TestReport& test) {
  Ordered object = Ordered::object();
  for (const auto& [name, value] : loss_first(test.metrics))
    object[name] = value;
  object["samples"] = test.samples;
  return object;
}

Ordered best_to_json(const std::optional<BestReport>& best) {
  if (!best) return nullptr;
  return {
      {"step", best->step}, {"metric", best->metric}, {"value", best->value}};
}

Ordered evaluations_to_json(const std::vector<EvaluationReport>& evaluations) {
  Ordered list = Ordered::array();
  for (const auto& evaluation : evaluations) {
    list.push_back(
        {{"step", evaluation.step}, {"test", test_to_json(evaluation.test)}});
  }
  return list;
}

Ordered time_line_to_json(const std::vector<RankTrace>& ranks) {
  Ordered list = Ordered::array();
  for (const auto& rank : ranks) list.push_back(Ordered(to_json(rank)));
  return list;
}

void read_test(const json& object, TestReport& test) {
  for (const auto& [key, value] : object.items()) {
    if (key != "samples") read(object, key.c_str(), test.metrics[key]);
  }
  read(object, "samples", test.samples);
}

void read_times(const json& object, TimeSummary& times) {
  read(object, "median", times.median);
  read_if_known(object, "p10", times.p10);
  read(object, "p90", times.p90);
  read(object, "mean", times.mean);
  read(object, "min", times.min);
}

void read_phases(const json& object, PhaseReport& phases) {
  for (const Phase& phase : kPhases) {
    read(object, phase.name, phases.*phase.seconds);
  }
}

void read_device(const json& object, DeviceReport& device) {
  read(object, "name", device.name);
  read(object, "samples", device.samples);
  read(object, "busy_fraction", device.busy_fraction);
  read(object, "memory_peak_bytes", device.memory_peak_bytes);
  read(object, "gradient_copy_bytes", device.gradient_copy_bytes);
}

// Reads the values that reports are made from.
void read_records(const json& object, RunReport& report) {
  read_if_known(object, "started_at", report.started_at);
  auto& percentiles_s = report.step_time_percentiles_s;
  read_if_known(object, "step_time_percentiles_s", percentiles_s);
  const bool is_whole = percentiles_s.empty() || percentiles_s.size() == 101;
  if (!is_whole ||
      !std::is_sorted(percentiles_s.begin(), percentiles_s.end())) {
    throw IoError({.code = ErrorCode::kMalformedData,
                   .what = "a run report's percentiles can't be",
                   .expected = "101 numbers in order",
                   .got = std::to_string(percentiles_s.size())});
  }
  const auto with = [&object](const char* key, const auto& read_value) {
    const auto found = object.find(key);
    if (found != object.end() && !found->is_null()) read_value(*found);
  };
  with("step_times", [&](const json& value) {
    report.step_times = step_times_from_json(value);
  });
  read_if_known(object, "skipped_at", report.skipped_at);
  with("memory", [&](const json& value) {
    report.memory = memory_history_from_json(value);
  });
  with("time_line", [&](const json& ranks) {
    for (const json& rank : ranks) {
      report.time_line.push_back(rank_trace_from_json(rank));
    }
  });
  with("environment", [&](const json& value) {
    report.environment = environment_from_json(value);
  });
  with("topology", [&](const json& value) {
    report.topology = std::make_shared<const inspect::Topology>(
        inspect::parse_topology(value.dump()));
  });
}

// Appends indented JSON. A list or object that contains no other is written on
// one line, so that the losses don't fill a thousand lines.
void append_text(std::string& text, const Ordered& value, size_t indent) {
  const auto is_nested = [](const Ordered& inner) {
    return inner.is_structured();
  };
  if (!value.is_structured() ||
      (indent > 0 && std::none_of(value.begin(), value.end(), is_nested))) {
    // Names and commands may be in any encoding.
    text += value.dump(-1, ' ', false, Ordered::error_handler_t::replace);
    return;
  }
  const bool is_object = value.is_object();
  text += is_object ? '{' : '[';
  const char* separator = "";
  for (const auto& [key, inner] : value.items()) {
    text += separator + ("\n" + std::string(indent + 2, ' '));
    if (is_object) text += Ordered(key).dump() + ": ";
    append_text(text, inner, indent + 2);
    separator = ",";
  }
  text += "\n" + std::string(indent, ' ');
  text += is_object ? '}' : ']';
}

void read_epoch(const json& object, EpochReport& epoch) {
  read(object, "epoch", epoch.epoch);
  read(object, "lr", epoch.lr);
  for (const auto& [key, value] : object.items()) {
    if (!key.starts_with(kTrainPrefix)) continue;
    read(object, key.c_str(), epoch.train[key.substr(kTrainPrefix.size())]);
  }
}

}  // namespace

TimeSummary summarize(std::vector<double> seconds) {
  if (seconds.empty()) return {};
  std::sort(seconds.begin(), seconds.end());
  const double sum = std::accumulate(seconds.begin(), seconds.end(), 0.0);
  return {.median = percentile(seconds, 0.5),
          .p10 = percentile(seconds, 0.1),
          .p90 = percentile(seconds, 0.9),
          .mean = sum / static_cast<double>(seconds.size()),
          .min = seconds.front()};
}

std::vector<double> percentiles(std::vector<double> seconds) {
  std::vector<double> result;
  if (seconds.empty()) return result;
  std::sort(seconds.begin(), seconds.end());
  for (int percent = 0; percent <= 100; ++percent) {
    result.push_back(percentile(seconds, percent / 100.0));
  }
  return result;
}

nlohmann::ordered_json to_ordered_json(const RunReport& report) {
  return {{"lockstep", report.lockstep},
          {"command", report.command},
          {"strategy", report.strategy},
          {"model", report.model},
          {"precision", report.precision},
          {"parameters", report.parameters},
          {"world_size", report.world_size},
          {"processes", report.processes},
          {"shards", report.shards},
          {"intra_op_threads", report.intra_op_threads},
          {"batch_size", report.batch_size},
          {"split", report.split},
          {"first_step_check",
           {{"module", report.first_step_check.module},
            {"loss", report.first_step_check.loss},
            {"reason", report.first_step_check.reason}}},
          {"devices", devices_to_json(report.devices)},
          {"memory_shared_bytes", report.memory_shared_bytes},
          {"parameter_bytes", report.parameter_bytes},
          {"optimizer_state_bytes", report.optimizer_state_bytes},
          {"sent_bytes", report.sent_bytes},
          {"resumed_from", report.resumed_from},
          {"first_step", report.first_step},
          {"steps", report.steps},
          {"step_time_s", times_to_json(report.step_time_s)},
          {"data_wait_s", report.data_wait_s},
          {"total_time_s", report.total_time_s},
          {"samples_per_s", report.samples_per_s},
          {"tokens_of_sample", report.tokens_of_sample},
          {"flops_of_sample", report.flops_of_sample},
          {"peak_flops_per_s", report.peak_flops_per_s},
          {"phases_s", phases_to_json(report.phases_s)},
          {"losses", report.losses},
          {"skipped_steps", report.skipped_steps},
          {"rollbacks", report.rollbacks},
          {"epochs", epochs_to_json(report.epochs)},
          {"evaluations", evaluations_to_json(report.evaluations)},
          {"best", best_to_json(report.best)},
          {"test", test_to_json(report.test)},
          {"parameter_sha256", report.parameter_sha256},
          {"last_checkpoint", report.last_checkpoint},
          {"checkpoints",
           {{"saved", report.checkpoints.saved},
            {"failed", report.checkpoints.failed},
            {"stall_s", report.checkpoints.stall_s},
            {"write_s", report.checkpoints.write_s},
            {"bytes", report.checkpoints.bytes}}},
          {"snapshots",
           {{"taken", report.snapshots.taken},
            {"seconds", report.snapshots.seconds},
            {"bytes", report.snapshots.bytes}}},
          {"recoveries", report.recoveries},
          {"interrupted", report.interrupted},
          {"stop_signal", report.stop_signal},
          {"started_at", report.started_at},
          {"step_time_percentiles_s", report.step_time_percentiles_s},
          {"step_times", to_json(report.step_times)},
          {"skipped_at", report.skipped_at},
          {"memory", to_json(report.memory)},
          {"environment", to_json(report.environment)},
          {"topology", report.topology ? inspect::to_json(*report.topology)
                                       : Ordered(nullptr)},
          {"time_line", time_line_to_json(report.time_line)}};
}

json to_json(const RunReport& report) { return to_ordered_json(report); }

RunReport run_report_from_json(const json& object) {
  RunReport report;
  read(object, "lockstep", report.lockstep);
  read(object, "command", report.command);
  read(object, "strategy", report.strategy);
  read(object, "model", report.model);
  read_if_known(object, "precision", report.precision);
  read(object, "parameters", report.parameters);
  read(object, "world_size", report.world_size);
  read(object, "processes", report.processes);
  read(object, "shards", report.shards);
  read(object, "intra_op_threads", report.intra_op_threads);
  read(object, "batch_size", report.batch_size);
  read(object, "split", report.split);
  if (object.contains("first_step_check")) {
    const json& check = member(object, "first_step_check");
    read(check, "module", report.first_step_check.module);
    read(check, "loss", report.first_step_check.loss);
    read(check, "reason", report.first_step_check.reason);
  }
  for (const auto& device : member(object, "devices")) {
    read_device(device, report.devices.emplace_back());
  }
  read(object, "memory_shared_bytes", report.memory_shared_bytes);
  read(object, "parameter_bytes", report.parameter_bytes);
  read(object, "optimizer_state_bytes", report.optimizer_state_bytes);
  read(object, "sent_bytes", report.sent_bytes);
  read(object, "resumed_from", report.resumed_from);
  read(object, "first_step", report.first_step);
  read(object, "steps", report.steps);
  read_times(member(object, "step_time_s"), report.step_time_s);
  read(object, "data_wait_s", report.data_wait_s);
  read(object, "total_time_s", report.total_time_s);
  read(object, "samples_per_s", report.samples_per_s);
  read(object, "tokens_of_sample", report.tokens_of_sample);
  read(object, "flops_of_sample", report.flops_of_sample);
  read(object, "peak_flops_per_s", report.peak_flops_per_s);
  read_phases(member(object, "phases_s"), report.phases_s);
  read(object, "losses", report.losses);
  read(object, "skipped_steps", report.skipped_steps);
  read(object, "rollbacks", report.rollbacks);
  for (const auto& epoch : member(object, "epochs")) {
    read_epoch(epoch, report.epochs.emplace_back());
  }
  if (const json& best = member(object, "best"); !best.is_null()) {
    report.best.emplace();
    read(best, "step", report.best->step);
    read(best, "metric", report.best->metric);
    read(best, "value", report.best->value);
  }
  for (const auto& evaluation : member(object, "evaluations")) {
    auto& known = report.evaluations.emplace_back();
    read(evaluation, "step", known.step);
    read_test(member(evaluation, "test"), known.test);
  }
  read_test(member(object, "test"), report.test);
  read(object, "parameter_sha256", report.parameter_sha256);
  read(object, "last_checkpoint", report.last_checkpoint);
  const json& checkpoints = member(object, "checkpoints");
  read(checkpoints, "saved", report.checkpoints.saved);
  read(checkpoints, "failed", report.checkpoints.failed);
  read(checkpoints, "stall_s", report.checkpoints.stall_s);
  read(checkpoints, "write_s", report.checkpoints.write_s);
  read(checkpoints, "bytes", report.checkpoints.bytes);
  const json& snapshots = member(object, "snapshots");
  read(snapshots, "taken", report.snapshots.taken);
  read(snapshots, "seconds", report.snapshots.seconds);
  read(snapshots, "bytes", report.snapshots.bytes);
  read(object, "recoveries", report.recoveries);
  read(object, "interrupted", report.interrupted);
  read(object, "stop_signal", report.stop_signal);
  read_records(object, report);
  return report;
}

void write_json(const std::string& path, const json& object) {
  AtomicFile file(path);
  file.write(object.dump(2) + "\n");
  file.commit();
}

void write_report(const std::string& path, const RunReport& report) {
  AtomicFile file(path);
  std::string text;
  append_text(text, to_ordered_json(report), 0);
  file.write(text + "\n");
  file.commit();
}

}  // namespace lockstep::train
