#include "lockstep/cli/embed/train_main.h"

#include <filesystem>

#include <fmt/format.h>

#include "lockstep/base/version.h"
#include "lockstep/cli/embed/run_task.h"
#include "lockstep/cli/start/program.h"
#include "lockstep/train/run/run_training.h"

namespace lockstep {
namespace {

int run(training::Task& task, const training::TrainOptions& defaults) {
  const std::string model = task.model().at("name");
  CLI::App app;
  cli::set_up(app);
  app.name(std::filesystem::path(cli::command_line()[0]).filename().string());
  app.description(
      fmt::format("Trains {} with Lockstep {}.\n", model, kVersion));
  app.footer(
      "Exit codes: 0 done, 1 failed, 2 bad usage, 70 training can't continue,\n"
      "75 preempted (run it again to continue), 130 ended by Ctrl-C.");
  cli::RunFlags flags;
  flags.options = defaults;
  cli::add_run_options(app, flags);
  app.callback([&] { cli::run_task(flags, "training " + model, task); });
  return cli::parse_and_run(app);
}

}  // namespace

int train_main(int argc, char** argv, training::TrainerBase& trainer,
               const training::TrainOptions& defaults) {
  return cli::run_with_torch(
      argc, argv, [&] { return run(*training::task_of(trainer), defaults); });
}

}  // namespace lockstep
