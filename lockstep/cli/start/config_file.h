#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

namespace lockstep::cli {

/// Adds --config to `command`: a JSON file with options of it.
///
///     {"model": "gpt-char", "batch-size": 12, "shuffle": false,
///      "milestones": [4, 9]}
///
/// The keys are the options' long names without dashes. A flag is true or
/// false, a list is an array; a number or a text is as on the command line.
/// What stands there wins over the file. "lockstep" is the version that wrote
/// it.
void add_config_option(CLI::App& command);

/// The words that a config file stands for. `arguments` are those of the
/// command line behind the command's name: of options that are among them the
/// file's values are left out. Throws BadUsage for a key that is no option of
/// `command`, and for a value that can't be an option's; InvalidArgument for
/// what is not JSON. `path` is for these messages.
std::vector<std::string> words_of_config(
    const CLI::App& command, const std::string& path, std::string_view text,
    const std::vector<std::string>& arguments);

/// `words` of a command line, with those of its --config in front of the
/// options, if `app` has a command that takes one. Throws IoError for a file
/// that can't be read, or is no plain file of at most 1 MiB.
std::vector<std::string> with_config(const CLI::App& app,
                                     std::vector<std::string> words);

/// The options that `command` got, but for where its output goes, as a config
/// file that runs the same once more.
std::string config_of(const CLI::App& command);

}  // namespace lockstep::cli
