#include <initializer_list>
#include <string>

#include "lockstep/cli/commands.h"
#include "lockstep/cli/embed/run_task.h"
#include "lockstep/cli/start/program.h"
#include "lockstep/cli/start/usage.h"

namespace lockstep::cli {
namespace {

using AddCommand = void (*)(CLI::App&);

// Adds commands under a heading of the help.
void add_group(CLI::App& app, const std::string& heading,
               std::initializer_list<AddCommand> commands) {
  for (const AddCommand add : commands) {
    add(app);
    app.get_subcommands([](CLI::App*) { return true; }).back()->group(heading);
  }
}

int run_any_command() {
  CLI::App app;
  set_up(app);
  add_group(app, "Commands",
            {add_train, add_eval, add_run, add_split, add_data, add_completion,
             add_help});
  add_group(app, "Tools",
            {add_compare, add_bench, add_plan, add_top, add_topo, add_check});
  add_group(app, "Language models", {add_generate, add_export, add_tokenize});
  add_group(app, "", {add_step_time});  // internal
  return parse_and_run(app);
}

}  // namespace

int run_program(int argc, char** argv) {
  return run_with_torch(argc, argv, run_any_command);
}

}  // namespace lockstep::cli
