#include <memory>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "lockstep/cli/command_options.h"
#include "lockstep/cli/commands.h"
#include "lockstep/cli/embed/run_flags.h"
#include "lockstep/cli/embed/run_task.h"
#include "lockstep/cli/start/add_option.h"
#include "lockstep/cli/start/checks.h"
#include "lockstep/cli/start/program.h"
#include "lockstep/tasks/images/image_task.h"
#include "lockstep/tasks/text/text_task.h"

namespace lockstep::cli {
namespace {

using tasks::OptimizerKind;
using tasks::OptimizerOptions;
using tasks::ScheduleKind;
using training::TrainOptions;

/// Values of the command line of `lockstep train`.
struct TrainFlags {
  ModelFlags model;
  LanguageModelFlags language;
  DataFlags data;
  std::string channels_last = "auto";
  RunFlags run;
  tasks::OptimizerOptions optimizer_options;
  std::string optimizer;  ///< empty: chosen by the model
  std::string schedule = "cosine";
  std::optional<double> lr;
  std::optional<double> momentum;
  std::optional<double> weight_decay;
  std::optional<double> beta2;
  std::optional<double> final_lr;
  bool no_augment = false;
};

void add_optimizer_options(CLI::App& app, TrainFlags& flags) {
  const std::string group = "Optimizer and schedule";
  add_choice(app, "--optimizer", flags.optimizer, {"sgd", "adamw"},
             "sgd or adamw")
      ->default_str("sgd; language models: adamw")
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
      ->default_str("0.0005; adamw: 0.01; language models: 0.1, matrices only")
      ->check(number(0))
      ->group(group);
  add_number(app, "--beta2", flags.beta2,
             "adamw: decay rate of the second moments")
      ->default_str("0.999; language models: 0.99")
      ->check(number(0))
      ->group(group);
  add_number(app, "--final-lr", flags.final_lr,
             "cosine: learning rate at the end")
      ->default_str("0; language models: a tenth of --lr")
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

void choose_optimizer(const TrainFlags& flags, bool is_language,
                      OptimizerOptions& options) {
  const bool is_adamw =
      flags.optimizer.empty() ? is_language : flags.optimizer == "adamw";
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
  const double adamw_decay = is_language ? 0.1 : 1e-2;
  options.weight_decay =
      flags.weight_decay.value_or(is_adamw ? adamw_decay : 5e-4);
  options.beta2 = flags.beta2.value_or(is_language ? 0.99 : 0.999);
  if (options.beta2 >= 1) {
    throw BadUsage(fmt::format("[usage] --beta2 must be less than 1, got {}",
                               options.beta2));
  }
  options.decays_matrices_alone = is_adamw && is_language;
  if (options.schedule != ScheduleKind::kCosine) {
    if (!flags.final_lr) return;
    throw BadUsage("[usage] --final-lr is for --schedule cosine, got " +
                   flags.schedule);
  }
  options.final_lr = flags.final_lr.value_or(is_language ? options.lr / 10 : 0);
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
  add_any_model_options(app, flags.model, flags.language);
  add_data_options(app, flags.data);
  app.add_flag("--no-augment", flags.no_augment,
               "train without random crop and flip [no]")
      ->group("Model and data");
  add_run_options(app, flags.run);
  add_channels_last_option(app, flags.channels_last);
  add_optimizer_options(app, flags);
  show_in_details(app, {{"More about model and data",
                         {"--stem", "--context", "--dropout", "--recompute",
                          "--image-size", "--tokenizer", "--val-fraction",
                          "--no-augment", "--channels-last"}},
                        {"More about optimizer and schedule",
                         {"--momentum", "--beta2", "--final-lr", "--nesterov",
                          "--milestones"}}});
}

// Returns the language model that the run continues, or whose weights it starts
// from. Throws CheckpointError if that can't be used.
std::optional<tasks::SavedModel> find_saved_model(const TrainFlags& flags) {
  const TrainOptions& options = flags.run.options;
  if (!options.checkpoint().resume().empty()) {
    auto found = tasks::find_saved_model(options.checkpoint().resume() == "auto"
                                             ? options.out_dir()
                                             : options.checkpoint().resume());
    if (found) return found;
  }
  return tasks::find_saved_model(options.init_from());
}

// Returns true if the run trains a language model: one that is named, or
// `saved`.
bool trains_language_model(const TrainFlags& flags,
                           const std::optional<tasks::SavedModel>& saved) {
  if (is_language_model(flags.model)) return true;
  if (saved && names_model(flags)) {
    throw BadUsage(
        fmt::format("[usage] --model {} is for images, and {} is a language "
                    "model; leave out --model",
                    flags.model.model, saved->source));
  }
  return saved.has_value();
}

// Returns the options of a run that trains an image classifier. Like
// to_text_options(), throws BadUsage.
tasks::ImageOptions to_image_options(const TrainFlags& flags) {
  if (flags.language.context || flags.language.dropout ||
      flags.language.recompute) {
    throw BadUsage(
        "[usage] --context, --dropout and --recompute are for language models, "
        "got --model " +
        flags.model.model);
  }
  tasks::ImageOptions images{
      .model = to_model_spec(flags.model),
      .data = to_data_spec(flags.data),
      .augment = !flags.no_augment,
      .channels_last = to_channels_last(flags.channels_last),
      .optimizer = flags.optimizer_options};
  choose_schedule(flags, images.optimizer);
  choose_optimizer(flags, false, images.optimizer);
  return images;
}

tasks::TextOptions to_text_options(
    const TrainFlags& flags, const std::optional<tasks::SavedModel>& saved) {
  if (flags.no_augment || flags.channels_last != "auto" ||
      flags.model.stem != "cifar") {
    throw BadUsage(
        "[usage] --no-augment, --channels-last and --stem are for images, got "
        "--model " +
        flags.model.model);
  }
  tasks::ModelChoice choice{.name = std::nullopt,
                            .context = flags.language.context,
                            .dropout = flags.language.dropout,
                            .recomputes_activations = flags.language.recompute};
  if (names_model(flags)) choice.name = flags.model.model;
  tasks::TextOptions text{.model = tasks::choose_model(choice, saved),
                          .data = to_text_spec(flags.data),
                          .optimizer = flags.optimizer_options,
                          .saved = saved,
                          .choice = choice};
  check_language_options(flags.language, text.model);
  choose_schedule(flags, text.optimizer);
  choose_optimizer(flags, true, text.optimizer);
  return text;
}

void run(const TrainFlags& flags) {
  std::shared_ptr<training::Task> task;
  std::string data, model = flags.model.model;
  const auto saved = find_saved_model(flags);
  if (trains_language_model(flags, saved)) {
    const tasks::TextOptions text = to_text_options(flags, saved);
    data = flags.data.file;
    model = text.model.name;
    task = std::make_shared<tasks::TextTask>(text);
  } else {
    const tasks::ImageOptions images = to_image_options(flags);
    data =
        images.data.name == "synthetic" ? "built-in images" : images.data.name;
    task = std::make_shared<tasks::ImageTask>(images);
  }
  run_task(flags.run, fmt::format("training {} on {}", model, data), *task);
}

}  // namespace

void add_train(CLI::App& app) {
  auto* command =
      add_command(app, "train", "Train a model on one or more devices");
  auto flags = std::make_shared<TrainFlags>();
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
