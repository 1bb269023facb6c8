#include <c10/util/Exception.h>
#include <fmt/format.h>

#include "lockstep/base/exit_code.h"
#include "lockstep/cli/commands.h"
#include "lockstep/cli/start/program.h"
#include "lockstep/cli/start/usage.h"

namespace lockstep::cli {
namespace {

int run_any_command() {
  CLI::App app;
  set_up(app);
  // In the order of the help.
  for (const auto add :
       {add_train, add_eval,    add_generate,    add_export,     add_plan,
        add_run,   add_compare, add_step_time,   add_report,     add_bench,
        add_split, add_top,     add_data,        add_tokenize,   add_doctor,
        add_topo,  add_check,   add_check_links, add_completion, add_man,
        add_help}) {
    add(app);
  }
  return parse_and_run(app);
}

}  // namespace

int run_program(int argc, char** argv) {
  return run_and_report(argc, argv, [] {
    try {
      return run_any_command();
    } catch (const c10::Error& error) {
      return fail(kExitFailed, error,
                  fmt::format("[torch] {}", error.what_without_backtrace()));
    }
  });
}

}  // namespace lockstep::cli
