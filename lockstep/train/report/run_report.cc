#include "lockstep/train/run_report.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/inspect/recorded_topology.h"
#include "lockstep/train/report/report_fields.h"
#include "lockstep/train/report/run_environment.h"

namespace lockstep {

void fields_of(training::Is<CheckpointCosts> auto& costs, const auto& field) {
  field("saved", costs.saved);
  field("failed", costs.failed);
  field("stall_s", costs.stall_s);
  field("write_s", costs.write_s);
  field("bytes", costs.bytes);
}

void fields_of(training::Is<SnapshotCosts> auto& costs, const auto& field) {
  field("taken", costs.taken);
  field("seconds", costs.seconds);
  field("bytes", costs.bytes);
}

}  // namespace lockstep

namespace lockstep::training {

void fields_of(Is<FirstStepReport> auto& check, const auto& field) {
  field("module", check.module);
  field("loss", check.loss);
  field("reason", check.reason);
}

void fields_of(Is<TimeSummary> auto& times, const auto& field) {
  field("median", times.median);
  field.if_known("p10", times.p10);
  field("p90", times.p90);
  field("mean", times.mean);
  field("min", times.min);
}

void fields_of(Is<EpochReport> auto& epoch, const auto& field) {
  field("epoch", epoch.epoch);
  field("lr", epoch.lr);
  field.metrics("train_", epoch.train);
}

void fields_of(Is<TestReport> auto& test, const auto& field) {
  field.metrics("", test.metrics);
  field("samples", test.samples);
}

void fields_of(Is<EvaluationReport> auto& evaluation, const auto& field) {
  field("step", evaluation.step);
  field("test", evaluation.test);
}

void fields_of(Is<BestReport> auto& best, const auto& field) {
  field("step", best.step);
  field("metric", best.metric);
  field("value", best.value);
}

void fields_of(Is<StepTimeHistory> auto& history, const auto& field) {
  field("steps", history.steps);
  field("seconds", history.seconds);
}

// The values that reports are made from come after these: to_ordered_json().
void fields_of(Is<RunReport> auto& report, const auto& field) {
  field("lockstep", report.lockstep);
  field("command", report.command);
  field("strategy", report.strategy);
  field("model", report.model);
  field.if_known("precision", report.precision);
  field("parameters", report.parameters);
  field("world_size", report.world_size);
  field("processes", report.processes);
  field("shards", report.shards);
  field("intra_op_threads", report.intra_op_threads);
  field("batch_size", report.batch_size);
  field("split", report.split);
  field.if_known("first_step_check", report.first_step_check);
  field("devices", report.devices);
  field("memory_shared_bytes", report.memory_shared_bytes);
  field("parameter_bytes", report.parameter_bytes);
  field("optimizer_state_bytes", report.optimizer_state_bytes);
  field("sent_bytes", report.sent_bytes);
  field("resumed_from", report.resumed_from);
  field("first_step", report.first_step);
  field("steps", report.steps);
  field("step_time_s", report.step_time_s);
  field("data_wait_s", report.data_wait_s);
  field("total_time_s", report.total_time_s);
  field("samples_per_s", report.samples_per_s);
  field("tokens_of_sample", report.tokens_of_sample);
  field("flops_of_sample", report.flops_of_sample);
  field("peak_flops_per_s", report.peak_flops_per_s);
  field("phases_s", report.phases_s);
  field("losses", report.losses);
  field("skipped_steps", report.skipped_steps);
  field("rollbacks", report.rollbacks);
  field("epochs", report.epochs);
  field("evaluations", report.evaluations);
  field("best", report.best);
  field("test", report.test);
  field("parameter_sha256", report.parameter_sha256);
  field("last_checkpoint", report.last_checkpoint);
  field("checkpoints", report.checkpoints);
  field("snapshots", report.snapshots);
  field("recoveries", report.recoveries);
  field("interrupted", report.interrupted);
  field("stop_signal", report.stop_signal);
  field.if_known("started_at", report.started_at);
  field.if_known("step_time_percentiles_s", report.step_time_percentiles_s);
}

namespace {

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

[[noreturn]] void refuse_records(const std::string& what,
                                 const std::string& got = "") {
  throw IoError({.code = ErrorCode::kMalformedData,
                 .what = "a run report's " + what,
                 .expected = "what `lockstep train` wrote",
                 .got = got});
}

// Checks that there are `count` values and that none of them is below 0.
template <class T>
void check_values(const std::vector<T>& values, size_t count,
                  const char* name) {
  if (values.size() != count) {
    refuse_records(
        std::string(name) + " have another number of values than of steps",
        std::to_string(values.size()));
  }
  if (std::any_of(values.begin(), values.end(), [](T v) { return v < 0; })) {
    refuse_records(std::string(name) + " have a value below 0");
  }
}

void check_steps(const std::vector<int64_t>& steps, const char* name) {
  check_values(steps, steps.size(), name);
  if (!std::is_sorted(steps.begin(), steps.end())) {
    refuse_records(std::string(name) + " are not in the order of steps");
  }
}

// Reads a history. Throws IoError, which begins with `name`.
template <class History>
History read_history(const json& object, const char* name) {
  History history;
  try {
    fields_of(history, [&object](const char* key, auto& values) {
      object.at(key).get_to(values);
    });
  } catch (const json::exception& error) {
    refuse_records(std::string(name) + " can't be read",
                   lockstep::text_of(error));
  }
  return history;
}

StepTimeHistory step_times_from_json(const json& object) {
  const auto history = read_history<StepTimeHistory>(object, "step times");
  check_steps(history.steps, "step times");
  check_values(history.seconds, history.steps.size(), "step times");
  return history;
}

void check_percentiles(const std::vector<double>& percentiles_s) {
  const bool is_whole = percentiles_s.empty() || percentiles_s.size() == 101;
  if (is_whole && std::is_sorted(percentiles_s.begin(), percentiles_s.end())) {
    return;
  }
  throw IoError({.code = ErrorCode::kMalformedData,
                 .what = "a run report's percentiles can't be",
                 .expected = "101 numbers in order",
                 .got = std::to_string(percentiles_s.size())});
}

// Reads the values that reports are made from.
void read_records(const json& object, RunReport& report) {
  const auto with = [&object](const char* key, const auto& read_value) {
    const auto found = object.find(key);
    if (found != object.end() && !found->is_null()) read_value(*found);
  };
  with("step_times", [&](const json& value) {
    report.step_times = step_times_from_json(value);
  });
  FieldReader(object).if_known("skipped_at", report.skipped_at);
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
  Ordered object = report;
  object["step_times"] = report.step_times;
  object["skipped_at"] = report.skipped_at;
  object["environment"] = to_json(report.environment);
  object["topology"] =
      report.topology ? inspect::to_json(*report.topology) : Ordered(nullptr);
  Ordered& ranks = object["time_line"] = Ordered::array();
  for (const auto& rank : report.time_line)
    ranks.push_back(Ordered(to_json(rank)));
  return object;
}

json to_json(const RunReport& report) { return to_ordered_json(report); }

RunReport run_report_from_json(const json& object) {
  auto report = object.get<RunReport>();
  check_percentiles(report.step_time_percentiles_s);
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

}  // namespace lockstep::training
