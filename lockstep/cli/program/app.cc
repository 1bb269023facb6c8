#include "lockstep/cli/program/app.h"

#include <string>
#include <vector>

#include "lockstep/cli/commands.h"
#include "lockstep/cli/component.h"
#include "lockstep/cli/embed/run_task.h"
#include "lockstep/cli/image_family.h"
#include "lockstep/cli/start/commands.h"
#include "lockstep/cli/start/program.h"
#include "lockstep/cli/start/usage.h"

namespace lockstep::cli {
namespace {

// Adds commands under a heading of the help.
void add_group(CLI::App& app, const std::string& heading,
               const std::vector<AddCommand>& commands) {
  for (const AddCommand& add : commands) {
    add(app);
    app.get_subcommands([](CLI::App*) { return true; }).back()->group(heading);
  }
}

int run_any_command() {
  const Component lm = lm_component();
  std::vector<MakeFamily> families{make_image_family};
  families.insert(families.end(), lm.families.begin(), lm.families.end());
  const Component tools = tools_component(families);

  CLI::App app;
  set_up(app);
  add_group(app, "Commands",
            {[&](CLI::App& to) { add_train(to, families); },
             [&](CLI::App& to) { add_eval(to, families); }, add_run, add_split,
             add_data, add_completion, add_help});
  for (const Component& component : {tools, lm}) {
    add_group(app, component.heading, component.commands);
    add_group(app, "", component.hidden_commands);
  }
  return parse_and_run(app);
}

}  // namespace

int run_program(int argc, char** argv) {
  return run_with_torch(argc, argv, run_any_command);
}

}  // namespace lockstep::cli
