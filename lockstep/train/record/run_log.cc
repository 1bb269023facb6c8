#include "lockstep/train/record/run_log.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/format.h"
#include "lockstep/base/host_identity.h"
#include "lockstep/base/text.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/inspect/device_topology.h"
#include "lockstep/train/report/run_environment.h"

namespace lockstep::training {
namespace {

using Lines = std::vector<std::pair<std::string, std::string>>;

std::string bytes(int64_t count) {
  return format_bytes(static_cast<double>(count));
}

std::string format_rate(double flops_per_s) {
  return flops_per_s < 1e12 ? fmt::format("{:.3g} GFLOP/s", flops_per_s / 1e9)
                            : fmt::format("{:.3g} TFLOP/s", flops_per_s / 1e12);
}

void add_times(const RunReport& report, Lines& lines) {
  const auto& time = report.step_time_s;
  std::string text = fmt::format(
      "{} in {}, {} samples/s", format_count(report.steps - report.first_step),
      format_duration(report.total_time_s),
      format_count(std::llround(report.samples_per_s)));
  if (report.tokens_of_sample > 0) {
    const double tokens_per_s =
        report.samples_per_s * static_cast<double>(report.tokens_of_sample);
    text +=
        fmt::format(", {} tokens/s", format_count(std::llround(tokens_per_s)));
  }
  lines.emplace_back("steps", text);
  lines.emplace_back("step time", fmt::format("median {}, p90 {}",
                                              format_duration(time.median),
                                              format_duration(time.p90)));
  if (report.peak_flops_per_s > 0) {
    const double flops_per_s = report.samples_per_s * report.flops_of_sample;
    lines.emplace_back(
        "compute", fmt::format("{}, {:.0f} % of what matrix products reach",
                               format_rate(flops_per_s),
                               100 * flops_per_s / report.peak_flops_per_s));
  }
  if (report.skipped_steps > 0) {
    lines.emplace_back(
        "left out",
        fmt::format("the updates of {}{}",
                    counted(report.skipped_steps, "step"),
                    report.rollbacks > 0
                        ? fmt::format(", and {} to a checkpoint",
                                      counted(report.rollbacks, "return"))
                        : ""));
  }
}

void add_devices(const RunReport& report, Lines& lines) {
  for (const auto& device : report.devices) {
    lines.emplace_back(
        device.name,
        fmt::format("busy {:.0f} %, memory peak {}", 100 * device.busy_fraction,
                    bytes(device.memory_peak_bytes)));
  }
  if (report.memory_shared_bytes > 0) {
    lines.emplace_back("shared",
                       fmt::format("memory {}, shared by all",
                                   bytes(report.memory_shared_bytes)));
  }
  if (report.sent_bytes > 0) {
    const int64_t steps =
        std::max<int64_t>(report.steps - report.first_step, 1);
    lines.emplace_back("sent", fmt::format("{} by all ranks, {} a step",
                                           bytes(report.sent_bytes),
                                           bytes(report.sent_bytes / steps)));
  }
}

void add_results(const RunReport& report, Lines& lines) {
  const auto add = [&](const char* name, const Metrics& metrics) {
    std::string text;
    for (const auto& [metric, value] : loss_first(metrics)) {
      if (!text.empty()) text += ", ";
      text += metric == "accuracy"
                  ? fmt::format("accuracy {:.2f} %", 100 * value)
                  : metric_text(metric, value);
    }
    lines.emplace_back(name, text);
  };
  add("training", report.epochs.back().train);
  if (report.test.samples > 0) add("test", report.test.metrics);
}

// Returns the devices in a report of one host; empty if they can't be
// determined.
std::vector<Device> devices_of(const RunReport& report, const Device& own) {
  std::vector<Device> devices;
  for (const auto& [name, samples, busy, peak, copied] : report.devices) {
    Device device = own;
    device.index = 0;
    while (device.name() != name && device.index < kMaxSlices) ++device.index;
    const bool is_known = device.index < kMaxSlices;
    const bool is_new =
        std::find(devices.begin(), devices.end(), device) == devices.end();
    if (!is_known || !is_new) return {};
    devices.push_back(device);
  }
  return devices;
}

}  // namespace

RunLog::RunLog(const TrainOptions& options, const Plan& plan, int64_t batches,
               RunRecordings& recordings)
    : options_(options),
      plan_(plan),
      batches_(batches),
      recordings_(recordings),
      progress_(options.log().progress() && plan.rank == 0
                    ? default_progress_style(stdout)
                    : ProgressStyle::kNone,
                options.log().every()) {}

void RunLog::go_on_at(const RunPosition& position) {
  RunReport& report = recordings_.report;
  if (report.losses.empty()) report.first_step = position.step;
  recordings_.some_step_times_s.forget_after(position.step);
  std::erase_if(report.skipped_at,
                [&](int64_t step) { return step > position.step; });
  const auto kept = static_cast<size_t>(
      std::max<int64_t>(position.step - report.first_step -
                            static_cast<int64_t>(report.skipped_at.size()),
                        0));
  if (report.losses.size() > kept) report.losses.resize(kept);
  while (!report.epochs.empty() &&
         report.epochs.back().epoch >= position.step / batches_) {
    report.epochs.pop_back();
  }
  while (!report.evaluations.empty() &&
         report.evaluations.back().step > position.step) {
    report.evaluations.pop_back();
  }
  mean_ = RunningMean(position.sums, position.samples);
}

void RunLog::begin(int64_t samples, const std::string& sample_name,
                   int64_t total_steps) {
  const RunReport& report = recordings_.report;
  if (report.recoveries > 0) return;
  line(fmt::format("[{}] {} | {} | {} of {}, in {}", device_names(),
                   counted(report.parameters, "parameter"),
                   counted(samples, sample_name), counted(total_steps, "step"),
                   options_.batch_size(), counted(plan_.shards, "shard")));
}

void RunLog::before_epoch(const RunState& at) {
  epoch_ = {.epoch = at.epoch};
  epoch_begin_ = at.step;
}

void RunLog::after_step(const RunState& at, const Metrics& metrics) {
  recordings_.step_times_s.push_back(at.step_s);
  recordings_.some_step_times_s.add(at.step, at.step_s);
  recordings_.samples += at.samples;
  if (at.is_skipped) {
    ++recordings_.report.skipped_steps;
    recordings_.report.skipped_at.push_back(at.step);
  } else {
    recordings_.report.losses.push_back(metrics.at("loss"));
    mean_.add(metrics, at.samples);
  }
  if (at.step == epoch_begin_ + 1) epoch_.lr = at.lr;
  progress_.step({.done = at.step,
                  .total = at.total_steps,
                  .epoch = at.epoch,
                  .metrics = mean_.means(),
                  .samples = at.samples});
}

void RunLog::after_epoch(const RunState& at, const Metrics& means) {
  epoch_.train = means;
  recordings_.report.epochs.push_back(epoch_);
  std::string text =
      fmt::format("[{}] Epoch {} | Batchsize: {} | Steps: {} | LR: {}",
                  device_names(), epoch_.epoch, options_.batch_size(),
                  at.step - at.epoch * batches_, format_number(epoch_.lr));
  for (const auto& [name, value] : loss_first(means)) {
    text += name == "accuracy"
                ? fmt::format(" | Acc: {:.2f}%", 100 * value)
                : fmt::format(" | {}: {}", name == "loss" ? "Loss" : name,
                              format_number(value));
  }
  line(text);
  // The next step belongs to another epoch.
  if (at.step % batches_ == 0) mean_ = {};
}

void RunLog::end_steps(int64_t steps, double stall_s,
                       const StepRunner& runner) {
  RunReport& report = recordings_.report;
  report.steps = steps;
  report.total_time_s = recordings_.time_s - stall_s;
  report.step_time_s = summarize(recordings_.step_times_s);
  report.step_time_percentiles_s = percentiles(recordings_.step_times_s);
  report.step_times = {};
  for (const auto& [step, step_s] : recordings_.some_step_times_s.points()) {
    report.step_times.steps.push_back(step);
    report.step_times.seconds.push_back(step_s);
  }
  if (report.total_time_s > 0) {
    report.samples_per_s =
        static_cast<double>(recordings_.samples) / report.total_time_s;
  }
  const auto& times = recordings_.step_times_s;
  runner.fill(report, std::accumulate(times.begin(), times.end(), 0.0));
}

void RunLog::add_evaluation(const TestReport& test, int64_t step) {
  recordings_.report.evaluations.push_back({.step = step, .test = test});
  std::string text = fmt::format("[{}] Step {}", device_names(), step);
  for (const auto& [name, value] : loss_first(test.metrics)) {
    text += " | test " + metric_text(name, value);
  }
  line(text);
}

void RunLog::end_evaluation(const TestReport& test) {
  recordings_.report.test = test;
  if (test.samples == 0) return;
  const auto accuracy = test.metrics.find("accuracy");
  line(fmt::format("[{}] Test {}", device_names(),
                   accuracy != test.metrics.end()
                       ? fmt::format("Acc: {:.4f}%", 100 * accuracy->second)
                       : "Loss: " + format_number(test.metrics.at("loss"))));
}

void RunLog::end(const StepRunner& runner, const std::string& path) {
  RunReport& report = recordings_.report;
  report.parameter_sha256 = parameter_digest(runner.model_state());
  const std::string summary = summary_text(report, terminal_columns(stdout));
  if (!summary.empty()) line(summary);
  line(digest_text(report));
  if (!report.last_checkpoint.empty()) {
    line("checkpoint " + report.last_checkpoint);
  }
  if (!path.empty() && plan_.rank == 0) write_report(path, report);
}

std::string RunLog::device_names() const {
  const bool has_all =
      plan_.devices.size() == static_cast<size_t>(plan_.world_size);
  return join_names(has_all ? plan_.devices : options_.devices());
}

void describe_machine(const ProcessGroup& world, const Device& own,
                      RunReport& report) {
  const auto hosts = world.all_gather_text(host_name());
  if (world.rank() != 0) return;
  report.environment = this_environment();
  const auto devices = devices_of(report, own);
  const bool is_one_host =
      std::all_of(hosts.begin(), hosts.end(),
                  [&](const std::string& host) { return host == hosts[0]; });
  if (devices.empty() || !is_one_host) return;
  try {
    report.topology = std::make_shared<const inspect::Topology>(
        inspect::device_topology(devices));
  } catch (const Error&) {
    // The report does without a topology: no driver reports it, or a slice no
    // longer exists.
    report.topology.reset();
  }
}

std::string summary_text(const RunReport& report, int columns) {
  if (report.losses.empty() || report.epochs.empty()) return {};
  Lines lines;
  add_times(report, lines);
  add_devices(report, lines);
  add_results(report, lines);
  size_t width = 0;
  for (const auto& line : lines) width = std::max(width, line.first.size());
  std::string text;
  for (const auto& [name, value] : lines) {
    const std::string line = fmt::format("{:<{}}  {}", name, width, value);
    text += (text.empty() ? "" : "\n") +
            (columns > 0 ? wrap(line, static_cast<size_t>(columns), width + 2)
                         : line);
  }
  return text;
}

std::string digest_text(const RunReport& report) {
  const bool is_host =
      report.devices.empty() || report.devices.front().name.starts_with("cpu");
  const std::string threads =
      is_host
          ? fmt::format(", {}{}", counted(report.intra_op_threads, "thread"),
                        report.shards > 1 ? " each" : "")
          : "";
  return fmt::format("parameter_sha256 {} ({}{})", report.parameter_sha256,
                     counted(report.shards, "shard"), threads);
}

}  // namespace lockstep::training
