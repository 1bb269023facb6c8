#include <algorithm>
#include <optional>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/format.h"
#include "lockstep/tools/comparison/run_values.h"
#include "lockstep/tools/comparison/time_line.h"
#include "lockstep/tools/tables/comparison_sections.h"

namespace lockstep::tools {
namespace {

// Devices whose peaks differ by less than this factor are called even.
constexpr double kEvenMemory = 1.05;
// Smaller shares of a step are not mentioned.
constexpr double kNotableShare = 0.02;
// Smaller differences between busy fractions are not mentioned.
constexpr double kNotableGap = 0.1;

const ComparedRun* baseline(const Comparison& comparison) {
  return comparison.baseline ? &comparison.runs[*comparison.baseline] : nullptr;
}

// Returns true if `run` uses CPU slices and `base` a single device.
bool is_on_slices(const ComparedRun& run, const ComparedRun& base) {
  return run.report.devices.front().name.starts_with("cpu:") &&
         base.report.devices.size() == 1;
}

// Slices are not more hardware if the single device computes a shard with as
// many threads as all slices together. A single device with several shards
// computes them in sequence, each with the same number of threads as a shard
// has elsewhere.
bool has_no_more_hardware(const ComparedRun& run, const ComparedRun& base) {
  const auto slices = static_cast<int64_t>(run.report.devices.size());
  return is_on_slices(run, base) &&
         base.report.intra_op_threads >= slices * run.report.intra_op_threads;
}

// Returns "no difference that 3 rounds can show (0.97 to 1.04 times as fast)".
std::string no_difference(const SpeedRatio& ratio, int64_t rounds) {
  return fmt::format("no difference that {} can show ({} times as fast)",
                     counted(rounds, "round"), interval_text(ratio));
}

// Returns "dp on 2 devices is faster than single: 1.40 times as fast (1.35 to
// 1.45)." A run is not called faster or slower if the difference may be chance.
std::string speedup_sentence(const Comparison& comparison,
                             const ComparedRun& run, const ComparedRun& base) {
  const size_t devices = run.report.devices.size();
  const SpeedRatio& speed = *run.speedup;
  const std::string name =
      fmt::format("{} on {}", run.label(),
                  counted(static_cast<int64_t>(devices), "device"));
  if (!speed.interval) {
    return fmt::format(
        "{} was {:.2f} times as fast as {}; with only one {} of each, some of "
        "that may be chance.",
        name, speed.times, base.label(),
        comparison.is_of_files ? "run" : "round");
  }
  if (!speed.is_clear()) {
    return fmt::format("{} and {}: {}.", name, base.label(),
                       no_difference(speed, comparison.rounds));
  }
  const std::string text = fmt::format("{} is {} than {}: {}", name,
                                       speed.times > 1 ? "faster" : "slower",
                                       base.label(), times_text(speed));
  if (has_no_more_hardware(run, base)) return text + ".";
  const double gained = speed.times / static_cast<double>(devices);
  return text + fmt::format(", {:.0f} % of the {} that would be proportional.",
                            100 * gained, devices);
}

std::string proportion_sentence(const ComparedRun& run,
                                const ComparedRun& base) {
  if (!has_no_more_hardware(run, base)) {
    return fmt::format(
        "Is that proportional? {} computes its {} one after another, each with "
        "{}; {} slices compute as many at once, so proportional would be {}.",
        base.label(), counted(base.report.shards, "shard"),
        counted(base.report.intra_op_threads, "thread"),
        run.report.devices.size(), run.report.devices.size());
  }
  return fmt::format(
      "Is that proportional? {} has all the cores of the host, too: the {} "
      "slices add no hardware, so any speed-up comes from working in slices. "
      "With {} GPUs against one, proportional would be {}.",
      base.label(), run.report.devices.size(), run.report.devices.size(),
      run.report.devices.size());
}

std::optional<std::string> limit_sentence(const ComparedRun& run) {
  if (!run.limit) return std::nullopt;
  const StepLimit& limit = *run.limit;
  std::vector<const StepPart*> rest;
  for (const StepPart& part : kStepParts) {
    if (part.seconds != &StepParts::products) rest.push_back(&part);
  }
  const StepPart& most = **std::ranges::max_element(
      rest, {},
      [&](const StepPart* part) { return limit.parts.*part->seconds; });
  return fmt::format(
      "{} reaches {:.0f} % of its limit: without the rest, the matrix products "
      "and convolutions of a step take {} of {}. The largest part of the rest "
      "is {}, {:.0f} %.",
      run.label(), 100 * limit.share(), format_duration(limit.products_alone_s),
      format_duration(limit.step_s), most.name,
      100 * limit.parts.*most.seconds / limit.step_s);
}

std::optional<std::string> memory_sentence(const ComparedRun& run) {
  const auto& devices = run.report.devices;
  if (devices.size() < 2) return std::nullopt;
  const auto [least, most] = std::ranges::minmax_element(
      devices, {}, &training::DeviceReport::memory_peak_bytes);
  if (least->memory_peak_bytes <= 0) return std::nullopt;
  const double ratio = static_cast<double>(most->memory_peak_bytes) /
                       static_cast<double>(least->memory_peak_bytes);
  if (ratio <= kEvenMemory) {
    return fmt::format(
        "With {}, the devices use the same amount of memory (they differ by "
        "{:.1f} %).",
        run.label(), 100 * (ratio - 1));
  }
  return fmt::format(
      "With {}, {} uses the most memory: {} more than {}, {:.1f} times as "
      "much. {}",
      run.label(), most->name,
      bytes_text(most->memory_peak_bytes - least->memory_peak_bytes),
      least->name, ratio,
      run.report.strategy == "dp-classic"
          ? "It holds the original, the optimizer state, the gathered outputs "
            "and the reduced gradients."
          : "");
}

std::optional<std::string> bottleneck_sentence(const ComparedRun& run) {
  const auto& phases = run.report.phases_s;
  const auto rest_s = outside_phases(run.report);
  // If the phases do not add up, nothing can be said about them.
  if (total(phases) <= 0 || !rest_s || run.report.devices.size() < 2) {
    return std::nullopt;
  }
  const double step_s = run.report.step_time_s.mean;
  std::vector<std::pair<double, std::string>> shares;
  const auto add = [&](const std::string& name, double seconds) {
    const double share = seconds / step_s;
    if (share >= kNotableShare) shares.emplace_back(share, name);
  };
  for (const Phase& phase : kPhases) {
    const std::string name = phase.name;
    if (name == "forward" || name == "backward") continue;
    add(name, phases.*phase.seconds);
  }
  add("other", *rest_s);
  std::sort(shares.rbegin(), shares.rend());
  std::vector<std::string> parts;
  for (const auto& [share, name] : shares) {
    parts.push_back(fmt::format("{} {:.0f} %", name, 100 * share));
  }
  const std::string list =
      parts.empty() ? "" : fmt::format(" ({})", fmt::join(parts, ", "));
  const double computing = (phases.forward + phases.backward) / step_s;
  return fmt::format(
      "{} spends {:.0f} % of a step on forward and backward, and {:.0f} % on "
      "the rest{}.",
      run.label(), 100 * computing, 100 * (1 - computing), list);
}

// Describes when ranks communicate, and whether they compute meanwhile.
std::optional<std::string> communication_sentence(const TimeLine& line) {
  const CommunicationTime time = communication_of(line);
  if (time.total_s <= 0) return std::nullopt;
  std::string text = fmt::format(
      "{}: a rank spends {} of it ({:.0f} %) with other ranks, {} of that "
      "waiting for them; {:.0f} % of it is hidden behind computing.",
      line.title, format_duration(time.total_s),
      100 * time.total_s / line.seconds, format_duration(time.wait_s),
      100 * time.hidden_s / time.total_s);
  for (const size_t kind : line.kinds()) {
    if (std::string_view(kBlockKinds[kind].name) != "sum+update") continue;
    text +=
        " Each rank reads the gradients of the others from their memory, in "
        "sum+update.";
  }
  return text;
}

std::optional<std::string> busy_sentence(const ComparedRun& run) {
  const auto& devices = run.report.devices;
  if (devices.size() < 2) return std::nullopt;
  const auto [least, most] = std::ranges::minmax_element(
      devices, {}, &training::DeviceReport::busy_fraction);
  const double gap = most->busy_fraction - least->busy_fraction;
  if (gap < kNotableGap) return std::nullopt;
  return fmt::format(
      "With {}, {} computes {:.0f} % of the time and {} only {:.0f} %: the "
      "latter waits.",
      run.label(), most->name, 100 * most->busy_fraction, least->name,
      100 * least->busy_fraction);
}

std::optional<std::string> copies_sentence(const ComparedRun& run) {
  const auto& report = run.report;
  if (report.devices.size() < 2 || report.parameters <= 0 ||
      report.parameter_bytes <= 0) {
    return std::nullopt;
  }
  const int64_t copies =
      std::max<int64_t>(1, report.parameter_bytes / (4 * report.parameters));
  return fmt::format(
      "{} holds {} of parameters, {}, and {} of optimizer state.", run.label(),
      bytes_text(report.parameter_bytes),
      copies == 1 ? "one copy for all devices"
                  : fmt::format("{} copies", copies),
      bytes_text(report.optimizer_state_bytes));
}

// Says how much of a ratio to PyTorch is there without parallelism. Models with
// kernels of Lockstep's own, and a step without the overhead of a framework,
// are faster on one device already.
std::optional<std::string> one_device_sentence(const Comparison& comparison) {
  const ComparedRun* single = find_run(comparison, kLockstep, "single");
  const ComparedRun* ddp = find_run(comparison, kLockstep, "ddp");
  const ComparedRun* torch_single = find_run(comparison, kPyTorch, "single");
  const ComparedRun* torch_ddp = find_run(comparison, kPyTorch, "ddp");
  if (!single || !ddp || !torch_single || !torch_ddp ||
      !differences_of_work(single->report, torch_single->report).empty()) {
    return std::nullopt;
  }
  const double alone =
      speed_over(*single, *torch_single, comparison.confidence).times;
  const double together =
      speed_over(*ddp, *torch_ddp, comparison.confidence).times;
  return fmt::format(
      "{} is {:.2f} times as fast as {}. On one device, {} is {:.2f} times as "
      "fast as {}, by its kernels and its step; the rest, {:.2f} times, is "
      "parallelism.",
      ddp->label(), together, torch_ddp->label(), single->label(), alone,
      torch_single->label(), together / alone);
}

// Compares ddp with processes that never communicate.
std::optional<std::string> ideal_sentence(const Comparison& comparison) {
  const ComparedRun* ours = find_run(comparison, kLockstep, "ddp");
  const ComparedRun* ideal = find_run(comparison, kPyTorch, "ideal");
  if (!ours || !ideal) return std::nullopt;
  const SpeedRatio speed = speed_over(*ours, *ideal, comparison.confidence);
  const std::string what = fmt::format(
      "{}, the same processes without synchronization, {}", ideal->label(),
      "which no DDP whose ranks each update every parameter can beat");
  if (!speed.interval || speed.is_clear()) {
    return fmt::format("{} is {}, measured by {}.", ours->label(),
                       times_text(speed), what);
  }
  return fmt::format("{} and {}: {}.", ours->label(), what,
                     no_difference(speed, comparison.rounds));
}

// Explains the notation of the tables.
std::optional<std::string> signs_sentence(const Comparison& comparison) {
  if (!has_speedup_intervals(comparison)) return std::nullopt;
  return fmt::format(
      "Step times are medians over the steps of all rounds; p10-p90 contains "
      "four of five steps. The 95 % confidence interval of a speed-up, over "
      "{}, is in brackets; ~ marks one that includes 1.",
      counted(comparison.rounds, "round"));
}

}  // namespace

std::string headline(const Comparison& comparison) {
  if (comparison.runs.empty()) return "nothing to compare";
  const auto& first = comparison.runs.front().report;
  size_t devices = 0;
  for (const auto& run : comparison.runs) {
    devices = std::max(devices, run.report.devices.size());
  }
  const std::string counted_devices =
      counted(static_cast<int64_t>(devices), "device");
  std::vector<std::string> models;
  bool has_same_work = true;
  for (const auto& run : comparison.runs) {
    has_same_work &= differences_of_work(first, run.report).empty();
    if (std::ranges::find(models, run.report.model) == models.end()) {
      models.push_back(run.report.model);
    }
  }
  if (!has_same_work) {
    return fmt::format("{} runs with different work: {}; {}",
                       comparison.runs.size(), fmt::join(models, ", "),
                       counted_devices);
  }
  return fmt::format("{} ({} parameters), batch of {}, {}", first.model,
                     format_count(first.parameters), first.batch_size,
                     counted_devices);
}

std::string method(const Comparison& comparison) {
  const std::string machine =
      fmt::format("{}, {}", counted(comparison.machine.cores, "core"),
                  comparison.machine.cpu_model);
  if (comparison.is_of_files) {
    return fmt::format("finished training runs; {}", machine);
  }
  return fmt::format(
      "{} of {} ({} to warm up), pooled, a fresh process each; {}",
      counted(comparison.rounds, "round"), counted(comparison.steps, "step"),
      comparison.warmup, machine);
}

std::vector<std::string> reading(const Comparison& comparison) {
  std::vector<std::string> sentences;
  const ComparedRun* base = baseline(comparison);
  const auto add = [&](std::optional<std::string> sentence) {
    if (sentence) sentences.push_back(std::move(*sentence));
  };
  std::optional<std::string> proportion;
  for (const auto& run : comparison.runs) {
    const bool is_parallel = run.report.devices.size() > 1;
    if (base == nullptr || &run == base || !run.speedup || !is_parallel) {
      continue;
    }
    add(speedup_sentence(comparison, run, *base));
    if (is_on_slices(run, *base)) {
      proportion = proportion_sentence(run, *base);
    }
  }
  add(std::move(proportion));
  add(one_device_sentence(comparison));
  add(ideal_sentence(comparison));
  for (const auto sentence : {limit_sentence, memory_sentence, copies_sentence,
                              busy_sentence, bottleneck_sentence}) {
    for (const auto& run : comparison.runs) add(sentence(run));
  }
  for (const TimeLine& line : time_lines(comparison)) {
    add(communication_sentence(line));
  }
  add(signs_sentence(comparison));
  for (const auto& note : comparison.notes) sentences.push_back(note);
  return sentences;
}

}  // namespace lockstep::tools
