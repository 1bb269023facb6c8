#include "lockstep/cli/embed/train_main.h"

#include <filesystem>

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include "lockstep/base/exit_code.h"
#include "lockstep/base/version.h"
#include "lockstep/cli/commands.h"
#include "lockstep/cli/embed/run_task.h"
#include "lockstep/cli/start/program.h"
#include "lockstep/cli/start/usage.h"
#include "lockstep/train/run/run_training.h"
#include "lockstep/train/run/trainer_task.h"

namespace lockstep {
namespace {

int run(train::Task& task, const train::TrainOptions& defaults) {
  const std::string model = task.model().at("name");
  CLI::App app;
  cli::set_up(app);
  app.name(std::filesystem::path(cli::command_line()[0]).filename().string());
  app.description(
      fmt::format("Trains {} with Lockstep {}.\n", model, kVersion));
  app.footer(
      "Exit codes: 0 done, 1 failed, 2 bad usage, 70 training can't continue,\n"
      "75 preempted (run it again to continue), 130 ended by Ctrl-C.");
  cli::RunFlags flags = cli::flags_with(defaults);
  cli::add_run_options(app, flags);
  app.callback([&] {
    cli::run_task(flags, "training " + model,
                  [&](const train::TrainOptions& options,
                      const train::RunContext& context) {
                    return train::run_training(task, options, context);
                  });
  });
  return cli::parse_and_run(app);
}

}  // namespace

int train_main(int argc, char** argv, train::TrainerBase& trainer,
               const train::TrainOptions& defaults) {
  return cli::run_and_report(argc, argv, [&] {
    try {
      return run(*train::task_of(trainer), defaults);
    } catch (const c10::Error& error) {
      return cli::fail(
          kExitFailed, error,
          fmt::format("[torch] {}", error.what_without_backtrace()));
    }
  });
}

}  // namespace lockstep
