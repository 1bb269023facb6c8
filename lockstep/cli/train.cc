#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "lockstep/cli/commands.h"
#include "lockstep/cli/embed/run_flags.h"
#include "lockstep/cli/embed/run_task.h"
#include "lockstep/cli/model_family.h"
#include "lockstep/cli/start/add_option.h"
#include "lockstep/cli/start/checks.h"
#include "lockstep/cli/start/program.h"

namespace lockstep::cli {
namespace {

using tasks::OptimizerKind;
using tasks::OptimizerOptions;
using tasks::ScheduleKind;
using training::TrainOptions;

/// Values of the command line of `lockstep train`.
struct TrainFlags {
  explicit TrainFlags(const std::vector<MakeFamily>& made) : families(made) {}

  ModelFamilies families;
  std::string model = "cnn";
  std::string data;  ///< empty: chosen by the model
  RunFlags run;
  tasks::OptimizerOptions optimizer_options;
  std::string optimizer;  ///< empty: chosen by the model
  std::string schedule = "cosine";
  std::optional<double> lr;
  std::optional<double> momentum;
  std::optional<double> weight_decay;
  std::optional<double> beta2;
  std::optional<double> final_lr;
};

std::string weight_decay_text(const ModelFamily& family) {
  const OptimizerDefaults defaults = family.optimizer_defaults();
  return fmt::format("{}{}", defaults.adamw_decay,
                     defaults.decays_matrices_alone ? ", matrices only" : "");
}

std::string beta2_text(const ModelFamily& family) {
  return fmt::format("{}", family.optimizer_defaults().beta2);
}

std::string final_lr_text(const ModelFamily& family) {
  return fmt::format("{} x --lr",
                     family.optimizer_defaults().final_lr_fraction);
}

std::vector<Option> optimizer_options(TrainFlags& flags) {
  constexpr const char* kGroup = "Optimizer and schedule";
  constexpr const char* kMore = "More about optimizer and schedule";
  const ModelFamilies& families = flags.families;
  return {
      {.name = "--optimizer",
       .value = &flags.optimizer,
       .help = "sgd or adamw",
       .default_text = families.default_optimizer(),
       .group = kGroup,
       .words = {"sgd", "adamw"}},
      {.name = "--lr",
       .value = &flags.lr,
       .help = "learning rate",
       .default_text = "0.02; with --schedule steps: 0.1; adamw: 0.001",
       .group = kGroup,
       .range = at_least(0)},
      {.name = "--momentum",
       .value = &flags.momentum,
       .help = "sgd: momentum",
       .default_text = "0.9",
       .topic = kMore,
       .range = at_least(0)},
      {.name = "--weight-decay",
       .value = &flags.weight_decay,
       .help = "weight decay",
       .default_text =
           families.default_text("0.0005; adamw: 0.01", weight_decay_text),
       .group = kGroup,
       .range = at_least(0)},
      {.name = "--beta2",
       .value = &flags.beta2,
       .help = "adamw: decay rate of the second moments",
       .default_text = families.default_text("0.999", beta2_text),
       .topic = kMore,
       .range = Range{.least = 0, .most = 1, .excludes_most = true}},
      {.name = "--final-lr",
       .value = &flags.final_lr,
       .help = "cosine: learning rate at the end",
       .default_text = families.default_text("0", final_lr_text),
       .topic = kMore,
       .range = at_least(0)},
      {.name = "--nesterov",
       .value = &flags.optimizer_options.nesterov,
       .help = "sgd: Nesterov momentum",
       .topic = kMore},
      {.name = "--schedule",
       .value = &flags.schedule,
       .help = "constant, steps (x 0.1 at each milestone) or cosine",
       .group = kGroup,
       .words = {"constant", "steps", "cosine"}},
      {.name = "--milestones",
       .value = &flags.optimizer_options.milestones,
       .help = "steps: epochs at which the learning rate drops",
       .default_text = "4,9,14",
       .topic = kMore,
       .range = at_least(1)},
      {.name = "--warmup-steps",
       .value = &flags.optimizer_options.warmup_steps,
       .help = "steps of linear warm-up",
       .group = kGroup,
       .range = at_least(0)},
  };
}

void choose_optimizer(const TrainFlags& flags,
                      const OptimizerDefaults& defaults,
                      OptimizerOptions& options) {
  const bool is_adamw = flags.optimizer.empty()
                            ? defaults.optimizer == OptimizerKind::kAdamW
                            : flags.optimizer == "adamw";
  options.optimizer = is_adamw ? OptimizerKind::kAdamW : OptimizerKind::kSgd;
  if (is_adamw && (flags.momentum || options.nesterov)) {
    throw BadUsage(fmt::format("[usage] {} is for --optimizer sgd, got adamw",
                               flags.momentum ? "--momentum" : "--nesterov"));
  }
  if (!is_adamw && flags.beta2) {
    throw BadUsage("[usage] --beta2 is for --optimizer adamw, got sgd");
  }
  // 0.1 is the usual rate of the step schedule. Without a warm-up, a ResNet
  // learns nothing with it in its first minute.
  const double sgd_lr = options.schedule == ScheduleKind::kSteps ? 0.1 : 0.02;
  options.lr = flags.lr.value_or(is_adamw ? 1e-3 : sgd_lr);
  options.momentum = flags.momentum.value_or(0.9);
  if (options.nesterov && options.momentum == 0) {
    throw BadUsage("[usage] --nesterov needs a --momentum above 0, got 0");
  }
  options.weight_decay =
      flags.weight_decay.value_or(is_adamw ? defaults.adamw_decay : 5e-4);
  options.beta2 = flags.beta2.value_or(defaults.beta2);
  options.decays_matrices_alone = is_adamw && defaults.decays_matrices_alone;
  if (options.schedule != ScheduleKind::kCosine) {
    if (!flags.final_lr) return;
    throw BadUsage("[usage] --final-lr is for --schedule cosine, got " +
                   flags.schedule);
  }
  options.final_lr =
      flags.final_lr.value_or(options.lr * defaults.final_lr_fraction);
}

bool names_model(const TrainFlags& flags) {
  return is_given(*flags.run.app, "--model");
}

void choose_schedule(const TrainFlags& flags, OptimizerOptions& options) {
  options.schedule = flags.schedule == "constant" ? ScheduleKind::kConstant
                     : flags.schedule == "steps"  ? ScheduleKind::kSteps
                                                  : ScheduleKind::kCosine;
  if (options.schedule == ScheduleKind::kSteps) {
    if (options.milestones.empty()) options.milestones = {4, 9, 14};
  } else if (!options.milestones.empty()) {
    throw BadUsage("[usage] --milestones is for --schedule steps, got " +
                   flags.schedule);
  }
}

void add_train_options(CLI::App& app, TrainFlags& flags) {
  const ModelFamilies& families = flags.families;
  const std::string default_data = families.default_text(
      "synthetic",
      [](const ModelFamily& family) { return family.datasets().front(); });
  add_option(app, families.model_option(flags.model));
  add_options(app, families.options_by_topic(OptionKind::kModel));
  add_option(app, families.data_option(flags.data, default_data));
  for (const auto kind :
       {OptionKind::kData, OptionKind::kAugmentation, OptionKind::kLayout}) {
    add_options(app, families.options_by_topic(kind));
  }
  add_run_options(app, flags.run);
  add_options(app, optimizer_options(flags));
}

// Returns the family of the model that the run continues, or whose weights it
// starts from, or else of --model. Throws CheckpointError if the weights can't
// be used.
ModelFamily& choose_family(const TrainFlags& flags) {
  const TrainOptions& options = flags.run.options;
  ModelFamily& named = flags.families.of_model(flags.model);
  const std::string& resume = options.checkpoint().resume();
  for (const auto& path :
       {resume == "auto" ? options.out_dir() : resume, options.init_from()}) {
    if (path.empty()) continue;
    for (const auto& family : flags.families) {
      const auto source = family->begin_with(path);
      if (!source) continue;
      if (family.get() != &named && names_model(flags)) {
        throw BadUsage(fmt::format(
            "[usage] --model {} is for {}, and {} is for {}; leave out --model",
            flags.model, named.name(), *source, family->name()));
      }
      return *family;
    }
  }
  return named;
}

void run(const TrainFlags& flags) {
  const ModelFamily& family = choose_family(flags);
  const bool is_named =
      names_model(flags) || &family == &flags.families.of_model(flags.model);
  flags.families.refuse_others(
      *flags.run.app, family, flags.data,
      is_named ? "--model " + flags.model : "a model of " + family.name());
  TrainChoice choice{.model = std::nullopt,
                     .data = flags.data,
                     .optimizer = flags.optimizer_options};
  if (is_named) choice.model = flags.model;
  choose_schedule(flags, choice.optimizer);
  choose_optimizer(flags, family.optimizer_defaults(), choice.optimizer);
  const TrainingRun run = family.make_run(choice);
  run_task(flags.run, fmt::format("training {} on {}", run.model, run.data),
           *run.task);
}

}  // namespace

void add_train(CLI::App& app, const std::vector<MakeFamily>& families) {
  auto* command =
      add_command(app, "train", "Train a model on one or more devices");
  auto flags = std::make_shared<TrainFlags>(families);
  add_train_options(*command, *flags);
  command->footer(
      "Ctrl-C finishes the current step, writes a checkpoint (with --out-dir) "
      "and exits with 130; a second Ctrl-C exits at once. SIGTERM, SIGUSR1 "
      "and SIGHUP do the same and exit with 75, so that a scheduler can queue "
      "the run again. The same command with --resume auto continues the run, "
      "also on "
      "other devices.\n\n"
      "Example:\n"
      "  lockstep train --devices 2xcpu --max-steps 100 \\\n"
      "      --out-dir runs/first");
  command->callback([flags] { run(*flags); });
}

}  // namespace lockstep::cli
