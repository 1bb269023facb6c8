#include <csignal>
#include <memory>
#include <numeric>
#include <sys/prctl.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/chunk.h"
#include "lockstep/base/stopwatch.h"
#include "lockstep/cli/commands.h"
#include "lockstep/cli/options.h"
#include "lockstep/cli/ranks.h"
#include "lockstep/cli/start/checks.h"
#include "lockstep/cli/start/program.h"
#include "lockstep/device/memory.h"
#include "lockstep/report/compare.h"
#include "lockstep/train/chrome_trace.h"
#include "lockstep/train/step_recorder.h"
#include "lockstep/train/step_runner.h"

namespace lockstep::cli {
namespace {

// The learning rate of the reference workloads.
constexpr double kLearningRate = 1e-3;

struct StepTimeFlags {
  ModelFlags model;
  DeviceFlags devices;
  MemoryFormatFlags memory_format{.channels_last = "off"};
  report::Work work;
  int64_t shards = 0;
  std::string strategy = "single";
  RankFlags ranks;
  std::string trace;
};

// Steps among which the typical one is looked for, and that a trace holds.
constexpr int64_t kTracedSteps = 10;

struct RankMeasurement {
  report::Measurement measurement;
  bool is_rank_0;
};

train::TrainOptions to_options(const StepTimeFlags& flags) {
  train::TrainOptions options;
  options.model = to_model_spec(flags.model);
  options.strategy = train::parse_strategy(flags.strategy);
  if (options.strategy == train::Strategy::kDistributed) {
    join_ranks(flags.ranks, flags.devices, options);
  } else {
    options.devices = to_devices(flags.devices, "auto");
  }
  // One device is the whole host, not one slice of it: what a user has who
  // does not cut it.
  if (options.strategy == train::Strategy::kSingle &&
      options.devices.front().is_cpu()) {
    options.devices = devices("cpu");
  }
  options.shards = flags.shards;
  options.batch_size = flags.work.batch_size;
  options.seed = flags.work.seed;
  options.lr = kLearningRate;
  options.momentum = 0.9;
  options.weight_decay = 0;
  options.channels_last = to_channels_last(flags.memory_format);
  return options;
}

/// The part of a batch that is this rank's.
data::Batch fixed_batch(const train::TrainOptions& options,
                        const train::Plan& plan) {
  torch::manual_seed(options.seed);
  const int64_t samples = options.batch_size;
  data::Batch batch;
  batch.inputs = options.model.name == "mlp"
                     ? torch::randn({samples, options.model.in_features})
                     : torch::randn({samples, 3, 32, 32});
  if (plan.channels_last && batch.inputs.dim() == 4) {
    batch.inputs = batch.inputs.contiguous(torch::MemoryFormat::ChannelsLast);
  }
  batch.targets = torch::randint(options.model.classes, {samples});
  batch.total = samples;
  const ShardRange own =
      shards_of_worker(options.world.rank(), options.world.size(), plan.shards);
  const SampleRange part = samples_of(own, samples, plan.shards);
  batch.inputs = batch.inputs.narrow(0, part.first, part.count());
  batch.targets = batch.targets.narrow(0, part.first, part.count());
  return batch;
}

RankMeasurement measure(const StepTimeFlags& flags) {
  // Before the first tensor, so that all of them are on an account.
  install_accounting_allocator();
  const auto options = to_options(flags);
  const auto plan = train::make_plan(options);
  train::StepRunner runner(options, plan);
  const auto batch = fixed_batch(options, plan);
  int64_t step = 0;
  for (; step < flags.work.warmup; ++step) {
    runner.step(batch, step, options.lr, false);
  }
  runner.restart_accounts();
  train::StepRecorder recorder(options.world, plan.devices, kTracedSteps);

  report::Measurement result;
  auto& times = result.step_times_s;
  for (int64_t timed = 0; timed < flags.work.steps; ++timed, ++step) {
    recorder.begin_step();
    const Stopwatch watch;
    runner.step(batch, step, options.lr, false);
    times.push_back(watch.seconds());
  }
  auto& report = result.report;
  report.command = command_line();
  runner.describe(report);
  report.steps = flags.work.steps;
  report.step_time_s = train::summarize(times);
  report.total_time_s = std::accumulate(times.begin(), times.end(), 0.0);
  report.samples_per_s =
      static_cast<double>(options.batch_size) / report.step_time_s.median;
  runner.fill(report, report.total_time_s);
  const auto traces = recorder.gather();
  result.time_line = train::typical_step(traces);
  const bool is_rank_0 = options.world.rank() == 0;
  if (is_rank_0 && !flags.trace.empty()) {
    train::write_chrome_trace(flags.trace, traces);
  }
  return {result, is_rank_0};
}

}  // namespace

void add_step_time(CLI::App& app) {
  auto* command = app.add_subcommand(
      report::kStepTimeCommand,
      "Time one strategy on a fixed batch; what `compare` runs");
  command->group("");  // not in the help
  auto flags = std::make_shared<StepTimeFlags>();
  add_model_options(*command, flags->model);
  add_device_options(*command, flags->devices, "auto");
  add_memory_format_option(*command, flags->memory_format);
  command->add_option("--strategy", flags->strategy, "how to train")
      ->check(one_of(train::strategy_names()));
  add_rank_options(*command, flags->ranks);
  command->add_option("--batch-size", flags->work.batch_size, "samples")
      ->check(whole_number(1));
  command->add_option("--steps", flags->work.steps, "timed")
      ->check(whole_number(1));
  command->add_option("--warmup", flags->work.warmup, "before, not timed")
      ->check(whole_number(0));
  command->add_option("--seed", flags->work.seed, "of weights and batch")
      ->check(whole_number(0));
  command->add_option("--shards", flags->shards, "logical shards")
      ->check(whole_number(0));
  command->add_option("--trace", flags->trace, "Chrome trace of all ranks");
  command->callback([flags] {
    // What started this waits for its line; without it there is no use in
    // going on.
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (flags->strategy == "ddp" && !is_rank()) start_ranks(flags->devices);
    const auto measurement = measure(*flags);
    if (measurement.is_rank_0) {
      fmt::print("{}\n", report::to_json(measurement.measurement).dump());
    }
  });
}

}  // namespace lockstep::cli
