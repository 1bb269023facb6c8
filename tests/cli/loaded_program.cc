#include "tests/cli/loaded_program.h"

#include <memory>
#include <sys/prctl.h>

#include "lockstep/base/process.h"
#include "lockstep/cli/program/app.h"
#include "lockstep/cli/start/program.h"
#include "tests/base/fork_server.h"
#include "tests/cli/program.h"

namespace lockstep::loaded_program {
namespace {

std::unique_ptr<ForkServer>& server() {
  static std::unique_ptr<ForkServer> the_server;
  return the_server;
}

int run(const std::vector<std::string>& arguments) {
  ::prctl(PR_SET_NAME, "lockstep");  // children_of() looks for this name
  set_own_program(LOCKSTEP_BINARY_DIR "/libexec/lockstep/lockstep");
  std::vector<char*> argv{const_cast<char*>(kProgram.c_str())};
  for (const auto& argument : arguments) {
    argv.push_back(const_cast<char*>(argument.c_str()));
  }
  argv.push_back(nullptr);
  return cli::run_program(static_cast<int>(argv.size()) - 1, argv.data());
}

}  // namespace

void start_server() { server() = std::make_unique<ForkServer>(run); }

bool can_run(const std::vector<std::string>& arguments) {
  return server() != nullptr && !arguments.empty() &&
         cli::needs_torch(arguments.front());
}

pid_t start(const std::vector<std::string>& arguments, int out, int err) {
  return server()->fork({.arguments = arguments,
                         .environment = own_environment(),
                         .out = out,
                         .err = err});
}

}  // namespace lockstep::loaded_program
