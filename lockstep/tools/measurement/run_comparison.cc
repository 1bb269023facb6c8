#include "lockstep/tools/measurement/run_comparison.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <set>
#include <thread>

#include <fmt/format.h>

#include "lockstep/base/format.h"
#include "lockstep/base/json.h"
#include "lockstep/base/stopwatch.h"
#include "lockstep/base/text.h"
#include "lockstep/train/train_options.h"

namespace lockstep::tools {
namespace {

// Command that runs one process of a contender.
struct Process {
  Contender contender;
  Command command;
};

void check(const CompareOptions& options) {
  if (options.strategies.empty()) {
    throw InvalidArgument("compare", {.code = ErrorCode::kBadOption,
                                      .what = "no strategy to compare",
                                      .fix = "name some in --strategies"});
  }
  std::set<std::string> seen;
  for (const auto& strategy : options.strategies) {
    if (!seen.insert(strategy).second) {
      throw InvalidArgument(
          "compare",
          {.code = ErrorCode::kBadOption,
           .what = fmt::format("strategy '{}' is named twice", strategy)});
    }
  }
  if (options.with_pytorch && options.work.model.starts_with("llama")) {
    throw InvalidArgument(
        "compare", {.code = ErrorCode::kBadOption,
                    .what = "pytorch_step_time.py has no " + options.work.model,
                    .expected = "a model of images or of GPT-2's kind",
                    .got = "a Llama",
                    .fix = "leave out --pytorch, or use --model gpt-char"});
  }
}

Command step_time_command(const CompareOptions& options,
                          const std::string& strategy) {
  const Work& work = options.work;
  Command command;
  command.arguments = {own_program(), kStepTimeCommand};
  const auto add = [&](const std::string& option, auto value) {
    command.arguments.push_back(option);
    command.arguments.push_back(fmt::format("{}", value));
  };
  add("--model", work.model);
  add("--batch-size", work.batch_size);
  add("--strategy", strategy);
  add("--devices", options.devices);
  add("--steps", work.steps);
  add("--warmup", work.warmup);
  add("--seed", work.seed);
  add("--shards", options.shards);
  if (has_ranks(strategy)) add("--backend", options.backend);
  if (!options.trace.empty()) add("--trace", trace_path(options, strategy));
  add("--precision", work.precision);
  add("--channels-last", work.channels_last ? "on" : "off");
  command.arguments.insert(command.arguments.end(),
                           options.child_options.begin(),
                           options.child_options.end());
  return command;
}

// Adds PyTorch's set-ups. Throws if PyTorch is not installed: a user who asks
// for it must not learn at the end that it was left out. On slices, these are a
// single process and DDP. With ddp, it also adds `ideal`: the same processes
// without communication. No DDP that updates all parameters on each rank can be
// faster. On accelerators, it adds the single process and a note.
void add_pytorch(const CompareOptions& options,
                 const std::vector<Device>& devices,
                 const std::function<bool()>& stop,
                 std::vector<Process>& processes, int cores,
                 std::vector<std::string>& notes) {
  const PyTorchPeer peer = find_pytorch(stop);
  if (!peer.missing.empty()) {
    throw Error("compare",
                {.code = ErrorCode::kProcessStart, .what = peer.missing});
  }
  if (!devices.front().is_cpu()) {
    auto command = pytorch_command(peer, options.work, "single", 1, cores);
    command.arguments.emplace_back("--device");
    command.arguments.push_back(devices.front().name());
    processes.push_back({{kPyTorch, "single"}, std::move(command)});
    notes.emplace_back(
        "PyTorch's DDP was left out: on accelerators, only PyTorch's single "
        "process is compared.");
    return;
  }
  std::vector<std::string> strategies{"single", "ddp"};
  const auto& ours = options.strategies;
  if (std::ranges::any_of(ours, has_ranks)) {
    strategies.emplace_back("ideal");
  }
  for (const std::string& strategy : strategies) {
    processes.push_back(
        {{kPyTorch, strategy},
         pytorch_command(peer, options.work, strategy,
                         static_cast<int>(devices.size()), cores)});
  }
}

Measurement parse(const Process& process, const CommandResult& result) {
  if (process.contender.engine == kPyTorch) {
    return pytorch_measurement(result.out, process.contender.strategy,
                               process.command);
  }
  const std::string line = last_line(result.out);
  const auto json = try_parse_json(line);
  if (json.is_discarded()) {
    throw Error("compare",
                {.code = ErrorCode::kProcessStart,
                 .what = fmt::format("the process of {} printed no measurement",
                                     process.contender.label()),
                 .expected = "a line of JSON",
                 .got = line.empty() ? "nothing" : "'" + line + "'"});
  }
  return measurement_from_json(json);
}

Measurement measure(const Process& process) {
  const CommandResult result = run_command(process.command);
  if (result.ok()) return parse(process, result);
  if (result.end == CommandResult::End::kStopped) {
    throw Interrupted(
        "compare",
        {.code = ErrorCode::kInterrupted,
         .what = fmt::format("interrupted while {} ran; nothing was written",
                             process.contender.label())});
  }
  const bool is_late = result.end == CommandResult::End::kDeadline;
  const std::string line = without_tags(last_line(result.err));
  throw Error(
      "compare",
      {.code = ErrorCode::kProcessStart,
       .what = fmt::format("the process of {} failed: {}{}",
                           process.contender.label(),
                           describe_end(result, process.command),
                           line.empty() ? "" : "; its last line: " + line),
       .fix = is_late ? "give it more time with --timeout, or fewer --steps"
                      : ""});
}

// A machine that is busy now will probably also be busy during the measurement.
void warn_if_busy(const CompareProgress& progress,
                  const std::function<bool()>& stop) {
  constexpr double kIdleSampleS = 1;
  constexpr std::chrono::milliseconds kPiece{50};
  const Stopwatch watch;
  const LoadWatch load_watch;
  while (watch.seconds() < kIdleSampleS && !stop()) {
    std::this_thread::sleep_for(kPiece);
  }
  const auto load = load_watch.load();
  if (!load || !load->is_busy()) return;
  progress.says(
      fmt::format("the machine is busy: other processes use {:.1f} of {}; wait "
                  "for them or end them, or the step times will be those of a "
                  "busy machine",
                  load->other_cores() + load->stolen_cores(),
                  counted(load->cores, "core")));
}

}  // namespace

std::string trace_path(const CompareOptions& options,
                       const std::string& strategy) {
  return (std::filesystem::path(options.trace) / (strategy + ".json")).string();
}

Comparison run_compare(const CompareOptions& options,
                       const std::vector<Device>& devices,
                       const CompareProgress& progress,
                       const std::function<bool()>& stop) {
  check(options);
  const Machine machine = this_machine();
  std::vector<std::string> notes;
  std::vector<Process> processes;
  for (const auto& strategy : options.strategies) {
    processes.push_back(
        {{kLockstep, strategy}, step_time_command(options, strategy)});
  }
  if (options.with_pytorch) {
    add_pytorch(options, devices, stop, processes, machine.cores, notes);
  }
  std::vector<Contender> contenders;
  for (auto& process : processes) {
    process.command.deadline_s = options.deadline_s;
    process.command.stop = stop;
    contenders.push_back(process.contender);
  }
  warn_if_busy(progress, stop);
  std::vector<MachineLoad> loads;
  const auto verdicts =
      verdict_rounds(options.rounds.least, options.rounds.most);
  int64_t counted_runs = 0;
  const auto measure_round = [&](size_t contender, int64_t round) {
    const int64_t next =
        *std::lower_bound(verdicts.begin(), verdicts.end(), round);
    progress.runs({.label = contenders[contender].label(),
                   .round = round,
                   .until_round = next,
                   .runs_left = next * static_cast<int64_t>(contenders.size()) -
                                counted_runs});
    const LoadWatch watch;
    Measurement measured = measure(processes[contender]);
    if (round == 0) return measured;
    ++counted_runs;
    loads.resize(static_cast<size_t>(round));
    if (const auto load = watch.load()) loads.back() += *load;
    return measured;
  };
  Comparison comparison =
      measure_rounds(contenders, options.rounds, measure_round, progress.says);
  comparison.machine = machine;
  if (!devices.front().is_cpu()) {
    notes.emplace_back(
        "The share of the limit was not measured: it is known on CPU slices "
        "only.");
  }
  comparison.steps = options.work.steps;
  comparison.warmup = options.work.warmup;
  if (const std::string text = busy_text(loads); !text.empty()) {
    notes.push_back(text);
    progress.says(text);
  }
  // A load over zero seconds is unknown.
  std::erase_if(loads, [](const auto& load) { return load.seconds <= 0; });
  comparison.loads = std::move(loads);
  comparison.notes = std::move(notes);
  return comparison;
}

}  // namespace lockstep::tools
