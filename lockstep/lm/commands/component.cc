#include "lockstep/cli/component.h"

#include "lockstep/lm/commands/commands.h"
#include "lockstep/lm/commands/language_family.h"

namespace lockstep::cli {

Component lm_component() {
  return {.heading = "Language models",
          .commands = {add_generate, add_export, add_tokenize},
          .hidden_commands = {},
          .families = {make_language_family}};
}

}  // namespace lockstep::cli
