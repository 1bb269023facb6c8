// bin/lockstep handles the subcommands that need no LibTorch, because loading
// LibTorch takes half a second, and several seconds from a cold disk.
// libexec/lockstep/lockstep handles all others. This process is then replaced
// by it.

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/process.h"
#include "lockstep/cli/start/commands.h"
#include "lockstep/cli/start/program.h"

namespace lockstep::cli {
namespace {

// exec keeps the process, with its id, open files and signals.
[[noreturn]] void become_whole_program(char** argv) {
  const std::filesystem::path own = own_program();
  const std::string whole =
      own.parent_path().parent_path() / "libexec" / "lockstep" / "lockstep";
  ::execv(whole.c_str(), argv);
  throw IoError(
      {.code = ErrorCode::kProcessStart,
       .what = "can't start " + whole,
       .expected = "the part of this program that needs LibTorch",
       .got = std::strerror(errno),
       .fix = "install Lockstep again: bin/lockstep needs the libexec folder "
              "next to bin, so link to it instead of copying it"});
}

}  // namespace
}  // namespace lockstep::cli

int main(int argc, char** argv) {
  using namespace lockstep::cli;
  return run_and_report(argc, argv, [argv] {
    const auto& words = command_line();
    if (needs_torch(words.size() < 2 ? "" : words[1]))
      become_whole_program(argv);
    CLI::App app;
    set_up(app);
    for (const auto add : {add_run, add_split, add_top, add_data}) add(app);
    return parse_and_run(app);
  });
}
