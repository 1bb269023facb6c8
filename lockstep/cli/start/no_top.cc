#include "lockstep/cli/start/commands.h"

namespace lockstep::cli {

void add_top(CLI::App& /*app*/) {}

}  // namespace lockstep::cli
