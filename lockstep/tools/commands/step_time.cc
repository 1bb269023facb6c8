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
#include "lockstep/cli/start/add_option.h"
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
  return run;
}

}  // namespace

void add_step_time(CLI::App& app, const std::vector<MakeFamily>& families) {
  auto* command =
      add_command(app, tools::kStepTimeCommand,
                  "Time one strategy on a fixed batch; used by `compare`");
  auto flags = std::make_shared<StepTimeFlags>(families);
  training::TrainOptions& options = flags->run.train;
  add_options(*command, {flags->families.model_option(flags->model),
                         measured_precision_option(named(
                             options.precision(), training::parse_precision))});
  add_options(*command, device_options(flags->devices, "all"));
  add_options(*command, flags->families.options(OptionKind::kLayout));
  add_options(*command, rank_options(flags->ranks));
  add_options(*command, {{.name = "--strategy",
                          .value = &flags->strategy,
                          .help = "strategy to time",
                          .words = tools::compared_strategies()},
                         train_option("--batch-size", &options.batch_size()),
                         {.name = "--steps",
                          .value = &flags->run.steps,
                          .help = "timed steps",
                          .range = at_least(1)},
                         {.name = "--warmup",
                          .value = &flags->run.warmup,
                          .help = "untimed steps before them",
                          .range = at_least(0)},
                         train_option("--seed", &options.seed()),
                         train_option("--shards", &options.shards()),
                         {.name = "--trace",
                          .value = &flags->run.trace,
                          .help = "Chrome trace of all ranks",
                          .type = "PATH"}});
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
