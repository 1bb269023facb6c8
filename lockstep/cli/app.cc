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
  add_train(app);
  add_eval(app);
  add_generate(app);
  add_export(app);
  add_plan(app);
  add_run(app);
  add_compare(app);
  add_step_time(app);
  add_report(app);
  add_bench(app);
  add_split(app);
  add_top(app);
  add_data(app);
  add_tokenize(app);
  add_doctor(app);
  add_topo(app);
  add_check(app);
  add_check_links(app);
  add_completion(app);
  add_man(app);
  add_help(app);
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
