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

void add_optimizer_options(CLI::App& app, TrainFlags& flags) {
  const std::string group = "Optimizer and schedule";
  const ModelFamilies& families = flags.families;
  add_choice(app, "--optimizer", flags.optimizer, {"sgd", "adamw"},
             "sgd or adamw")
      ->default_str(families.default_optimizer())
      ->group(group);
  add_number(app, "--lr", flags.lr, "learning rate")
      ->default_str("0.02; with --schedule steps: 0.1; adamw: 0.001")
      ->check(number(0))
      ->group(group);
  add_number(app, "--momentum", flags.momentum, "sgd: momentum")
      ->default_str("0.9")
      ->check(number(0))
      ->group(group);
  add_number(app, "--weight-decay", flags.weight_decay, "weight decay")
      ->default_str(
          families.default_text("0.0005; adamw: 0.01", weight_decay_text))
      ->check(number(0))
      ->group(group);
  add_number(app, "--beta2", flags.beta2,
             "adamw: decay rate of the second moments")
      ->default_str(families.default_text("0.999", beta2_text))
      ->check(number(0))
      ->group(group);
  add_number(app, "--final-lr", flags.final_lr,
             "cosine: learning rate at the end")
      ->default_str(families.default_text("0", final_lr_text))
      ->check(number(0))
      ->group(group);
  app.add_flag("--nesterov", flags.optimizer_options.nesterov,
               "sgd: Nesterov momentum [no]")
      ->group(group);
  add_choice(app, "--schedule", flags.schedule, {"constant", "steps", "cosine"},
             "constant, steps (x 0.1 at each milestone) or cosine")
      ->group(group);
  app.add_option("--milestones", flags.optimizer_options.milestones,
                 "steps: epochs at which the learning rate drops")
      ->type_name("N,N")
      ->delimiter(',')
      ->default_str("4,9,14")
      ->check(whole_number(1))
      ->group(group);
  add_count(app, "--warmup-steps", flags.optimizer_options.warmup_steps, {0},
            "steps of linear warm-up")
      ->group(group);
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
  if (options.beta2 >= 1) {
    throw BadUsage(fmt::format("[usage] --beta2 must be less than 1, got {}",
                               options.beta2));
  }
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
  return flags.run.app->count("--model") > 0;
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
  families.add_model_option(app, flags.model);
  families.add_model_options(app);
  families.add_data_options(
      app, flags.data,
      families.default_text("synthetic", [](const ModelFamily& family) {
        return family.datasets().front();
      }));
  for (const auto& family : families) family->add_augmentation_option(app);
  add_run_options(app, flags.run);
  for (const auto& family : families) family->add_layout_option(app);
  add_optimizer_options(app, flags);
  std::vector<std::string> details;
  for (const auto& family : families) {
    for (const auto& name : family->details()) details.push_back(name);
  }
  show_in_details(app, {{"More about model and data", details},
                        {"More about optimizer and schedule",
                         {"--momentum", "--beta2", "--final-lr", "--nesterov",
                          "--milestones"}}});
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
