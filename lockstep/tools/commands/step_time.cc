#include "lockstep/tools/measurement/step_time.h"

#include <algorithm>
#include <csignal>
#include <memory>
#include <sys/prctl.h>

#include <fmt/format.h>

#include "lockstep/base/json.h"
#include "lockstep/cli/command_options.h"
#include "lockstep/cli/embed/ranks.h"
#include "lockstep/cli/model_family.h"
#include "lockstep/cli/start/checks.h"
#include "lockstep/cli/start/program.h"
#include "lockstep/device/memory.h"
#include "lockstep/tools/commands/commands.h"
#include "lockstep/tools/measurement/run_comparison.h"

namespace lockstep::cli {
namespace {

struct StepTimeFlags {
  explicit StepTimeFlags(const std::vector<MakeFamily>& made)
      : families(made) {}

  ModelFamilies families;
  std::string model = "cnn";
  DeviceFlags devices;
  tools::TimedRun run;  ///< numbers are bound to it directly
  std::string precision = "fp32";
  std::string strategy = "single";
  RankFlags ranks;
};

bool is_own_loop(const std::string& strategy) {
  return std::ranges::count(tools::own_loops(), strategy) > 0;
}

/// Returns the strategy of `train` that uses the same devices and ranks.
std::string wrapper_of(const std::string& strategy) {
  if (!is_own_loop(strategy)) return strategy;
  return tools::has_ranks(strategy) ? "ddp" : "dp";
}

tools::TimedRun to_run(const StepTimeFlags& flags) {
  tools::TimedRun run = flags.run;
  run.fuses = flags.strategy != tools::kDpLoopUnfused &&
              flags.strategy != tools::kDdpLoopUnfused;
  const ModelFamily& family = flags.families.of_model(flags.model);
  // The optimizers of the reference workloads.
  tasks::OptimizerOptions optimizer{
      .optimizer = family.optimizer_defaults().optimizer,
      .lr = 1e-3,
      .schedule = tasks::ScheduleKind::kConstant};
  optimizer.weight_decay =
      optimizer.optimizer == tasks::OptimizerKind::kAdamW ? 1e-2 : 0;
  run.work = family.make_workload(flags.model, optimizer);
  training::TrainOptions& options = run.train;
  options.strategy(training::parse_strategy(wrapper_of(flags.strategy)));
  if (options.strategy() == training::Strategy::kDistributed) {
    training::RunContext context;
    join_ranks(flags.ranks, flags.devices, options, context);
    run.world = context.world;
  } else {
    options.devices(to_devices(flags.devices, "all"));
  }
  // A single device is the whole host rather than one slice of it, because that
  // is what a user without slices has.
  if (options.strategy() == training::Strategy::kSingle) {
    options.devices().resize(1);
    if (options.devices().front().is_cpu()) options.devices(devices("cpu"));
  }
  options.precision(training::parse_precision(flags.precision));
  return run;
}

}  // namespace

void add_step_time(CLI::App& app, const std::vector<MakeFamily>& families) {
  auto* command =
      add_command(app, tools::kStepTimeCommand,
                  "Time one strategy on a fixed batch; used by `compare`");
  auto flags = std::make_shared<StepTimeFlags>(families);
  training::TrainOptions& options = flags->run.train;
  flags->families.add_model_option(*command, flags->model);
  add_precision_option(*command, flags->precision);
  add_device_options(*command, flags->devices, "all");
  for (const auto& family : flags->families) {
    family->add_layout_option(*command);
  }
  command->add_option("--strategy", flags->strategy, "strategy to time")
      ->check(one_of(tools::compared_strategies()));
  add_rank_options(*command, flags->ranks);
  command->add_option("--batch-size", options.batch_size(), "samples")
      ->check(whole_number(1));
  command->add_option("--steps", flags->run.steps, "timed steps")
      ->check(whole_number(1));
  command
      ->add_option("--warmup", flags->run.warmup, "untimed steps before them")
      ->check(whole_number(0));
  command
      ->add_option("--seed", options.seed(),
                   "seed of the weights and the batch")
      ->check(whole_number(0));
  command->add_option("--shards", options.shards(), "logical shards")
      ->check(whole_number(0));
  command->add_option("--trace", flags->run.trace, "Chrome trace of all ranks");
  command->callback([flags] {
    // The parent process waits for the output. If the parent ends, there is no
    // reason to continue.
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (tools::has_ranks(flags->strategy) && !is_rank()) {
      start_ranks(to_devices(flags->devices, "all").size());
    }
    // Called before the first tensor is created, so that all tensors are
    // charged to an account.
    install_accounting_allocator();
    const auto run = to_run(*flags);
    auto measured = is_own_loop(flags->strategy) ? tools::measure_own_loop(run)
                                                 : tools::measure_steps(run);
    measured.report.command = command_line();
    if (run.world.rank() == 0) {
      fmt::print("{}\n", tools::to_json(measured).dump());
    }
  });
}

}  // namespace lockstep::cli
