#include "lockstep/cli/start/program.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <cstddef>
#include <filesystem>
#include <new>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/env.h"
#include "lockstep/base/exit_code.h"
#include "lockstep/base/file_error.h"
#include "lockstep/base/out_of_resources.h"
#include "lockstep/base/output.h"
#include "lockstep/base/printable.h"
#include "lockstep/base/version.h"
#include "lockstep/cli/start/checks.h"
#include "lockstep/cli/start/config_file.h"
#include "lockstep/cli/start/usage.h"
#include "lockstep/launch/failure/error_file.h"

namespace lockstep::cli {
namespace {

constexpr size_t kMaxErrorBytes = 64 << 10;

constexpr std::array<std::string_view, 6> kWithoutTorch{
    "run", "split", "top", "data", "--version", "-V"};

std::vector<std::string> own_arguments;
std::vector<std::string> words_of_program;

// Returns true if the word after the option `argument` is its value. An unknown
// option is left to CLI11, which explains the error.
bool takes_next(const CLI::App& command, const std::string& argument) {
  const bool is_long = argument.starts_with("--");
  if (is_long && argument.find('=') != std::string::npos) return false;
  if (!is_long && argument.size() > 2) return false;  // "-r3"
  const CLI::Option* option = command.get_option_no_throw(argument);
  return option != nullptr && option->get_items_expected_max() > 0;
}

// Users of torchrun write --batch_size as well as --batch-size.
std::string with_dashes(std::string argument) {
  if (!argument.starts_with("--")) return argument;
  const auto end = std::min(argument.find('='), argument.size());
  std::replace(argument.begin(),
               argument.begin() + static_cast<std::ptrdiff_t>(end), '_', '-');
  return argument;
}

// Moves the user's program and its arguments from the end of `words`, which
// begin with the name of `command`, to words_of_program. These are all words
// from the first one that is neither an option of `command` nor an option's
// value, or all words after "--". CLI11 must not see them, because it would
// treat options and brackets as its own.
void take_program_words(const CLI::App& command,
                        std::vector<std::string>& words) {
  auto end = words.begin() + 1;
  for (; end != words.end(); ++end) {
    const std::string argument = with_dashes(*end);
    if (argument.size() < 2 || argument.front() != '-' || argument == "--") {
      break;
    }
    if (takes_next(command, argument) && end + 1 != words.end()) ++end;
  }
  const bool has_dashes = end != words.end() && *end == "--";
  words_of_program.assign(has_dashes ? end + 1 : end, words.end());
  words.erase(end, words.end());
}

// Returns the words in reverse order, as CLI11's parse() of a vector requires.
std::vector<std::string> to_parse(const CLI::App& app) {
  std::vector<std::string> words(own_arguments.begin() + 1,
                                 own_arguments.end());
  if (!words.empty() && words.front() == "run") {
    take_program_words(*app.get_subcommand("run"), words);
  }
  std::ranges::transform(words, words.begin(), with_dashes);
  words = with_config(app, std::move(words));
  std::ranges::reverse(words);
  return words;
}

// Returns false if the record could not be written, so that the error is
// printed here.
bool is_told_by_launcher() {
  const auto record = env("TORCHELASTIC_ERROR_FILE");
  return env(kOwnRankVariable) && record &&
         launch::read_error_file(*record).has_value();
}

}  // namespace

const std::vector<std::string>& program_words() { return words_of_program; }

const std::vector<std::string>& command_line() { return own_arguments; }

bool needs_torch(std::string_view command) {
  return std::ranges::find(kWithoutTorch, command) == kWithoutTorch.end();
}

void set_up(CLI::App& app) {
  app.name("lockstep");
  app.description(
      "Lockstep: data-parallel training on LibTorch, with the same bits on any "
      "devices.\n");
  app.set_version_flag(
      "--version,-V",
      fmt::format("lockstep {} (LibTorch {})", kVersion, kTorchVersion),
      "Print the version");
  app.set_help_flag("--help,-h", "Print this help");
  app.set_help_all_flag("--help-all", "Print this help with all options");
  app.option_defaults()->always_capture_default();
  // As with argparse: a script's options, and then one's own.
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.formatter(make_formatter());
  app.require_subcommand(0, 1);
  app.footer(
      "`lockstep help COMMAND` lists the options of a command.\n"
      "Exit codes: 0 done, 1 failed, 2 bad usage, 70 training can't continue,\n"
      "75 preempted (run it again to continue), 130 ended by Ctrl-C.");
}

CLI::App* add_command(CLI::App& app, std::string name,
                      std::string description) {
  return app.add_subcommand(std::move(name), std::move(description));
}

int parse_and_run(CLI::App& app) {
  try {
    app.parse(to_parse(app));
  } catch (const CLI::RuntimeError& error) {
    return error.get_exit_code();
  } catch (const CLI::Success& request) {  // --help, --version
    return app.exit(request);
  } catch (const CLI::ParseError& error) {
    throw BadUsage(explain(app, error));
  }
  if (has_commands(app) && app.get_subcommands().empty()) {
    fmt::print(stderr, "{}", help_of(app));
    return kExitBadUsage;
  }
  return kExitDone;
}

int fail(int code, const std::exception& error, std::string_view text) {
  launch::record_error(error);
  // The text may contain names of files, which can have any bytes.
  if (!is_told_by_launcher()) {
    fmt::print(stderr, "{}\n", printable(text, kMaxErrorBytes));
  }
  return code;
}

int run_and_report(int argc, char** argv, const std::function<int()>& run) {
  own_arguments.assign(argv, argv + argc);
  open_standard_files();
  // A write that exceeds `ulimit -f` should fail with EFBIG and not end the
  // process.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    const int code = run();
    // The disk that stdout is on may be full.
    flush_output(stdout);
    return code;
  } catch (const BadUsage& error) {
    return fail(kExitBadUsage, error, error.what());
  } catch (const std::bad_alloc& error) {
    const std::string limits = memory_limits();
    return fail(kExitFailed, error,
                "[memory] there is not enough memory" +
                    (limits.empty() ? limits : "; " + limits));
  } catch (const Error& error) {
    return fail(exit_code_of(error), error, error.what());
  } catch (const std::filesystem::filesystem_error& error) {
    const IoError own =
        file_error("use", error.path1().string(), error.code().value());
    return fail(exit_code_of(own), own, own.what());
  } catch (const std::exception& error) {
    return fail(exit_code_of(error), error, lockstep::text_of(error));
  }
}

}  // namespace lockstep::cli
