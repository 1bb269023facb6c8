#include "lockstep/cli/commands.h"
#include "lockstep/cli/embed/run_task.h"
#include "lockstep/cli/start/program.h"
#include "lockstep/cli/start/usage.h"

namespace lockstep::cli {
namespace {

int run_any_command() {
  CLI::App app;
  set_up(app);
  // In the order of the help.
  for (const auto add :
       {add_train, add_eval, add_generate, add_export, add_plan, add_run,
        add_compare, add_step_time, add_bench, add_split, add_top, add_data,
        add_tokenize, add_topo, add_check, add_completion, add_help}) {
    add(app);
  }
  return parse_and_run(app);
}

}  // namespace

int run_program(int argc, char** argv) {
  return run_with_torch(argc, argv, run_any_command);
}

}  // namespace lockstep::cli
