#include "lockstep/cli/component.h"

#include "lockstep/cli/start/commands.h"
#include "lockstep/tools/commands/commands.h"

namespace lockstep::cli {

Component tools_component(const std::vector<MakeFamily>& families) {
  const auto with_families = [families](const auto& add) {
    return [add, families](CLI::App& app) { add(app, families); };
  };
  return {.heading = "Tools",
          .commands = {with_families(add_compare), add_bench,
                       with_families(add_plan), add_top, add_topo, add_check},
          .hidden_commands = {with_families(add_step_time)},
          .families = {}};
}

}  // namespace lockstep::cli
