#include <memory>

#include <fmt/format.h>

#include "lockstep/cli/commands.h"
#include "lockstep/cli/embed/run_task.h"
#include "lockstep/cli/start/program.h"
#include "lockstep/cli/train_options.h"
#include "lockstep/train/run/run_training.h"

namespace lockstep::cli {
namespace {

void run(const TrainFlags& flags) {
  std::shared_ptr<train::Task> task;
  std::string data, model = flags.model.model;
  const auto saved = find_saved_model(flags);
  if (trains_language_model(flags, saved)) {
    const TextRun text = to_text_run(flags, saved);
    data = flags.data.file;
    model = text.text.model.name;
    task = std::make_shared<tasks::TextTask>(text.text);
  } else {
    const tasks::ImageRun images = to_image_run(flags);
    data = images.images.data.name == "synthetic" ? "built-in images"
                                                  : images.images.data.name;
    task = std::make_shared<tasks::ImageTask>(images.images);
  }
  run_task(flags.run, fmt::format("training {} on {}", model, data),
           [&](const train::TrainOptions& options,
               const train::RunContext& context) {
             return train::run_training(*task, options, context);
           });
}

}  // namespace

void add_train(CLI::App& app) {
  auto* command =
      add_command(app, "train", "Train a model on one device or on several");
  auto flags = std::make_shared<TrainFlags>();
  add_train_options(*command, *flags);
  command->footer(
      "Ctrl-C ends the run after the step it is in, writes a checkpoint (with\n"
      "--out-dir) and ends with 130; a second one ends it at once. SIGTERM "
      "and\n"
      "SIGUSR1 do the same and end with 75: a scheduler may queue it again.\n"
      "The same command with --resume auto goes on, on other devices if you\n"
      "like.\n\n"
      "Example:\n"
      "  lockstep train --devices cpu:2 --max-steps 100 \\\n"
      "      --out-dir runs/first");
  command->callback([flags] { run(*flags); });
}

}  // namespace lockstep::cli
