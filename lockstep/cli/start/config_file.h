#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

namespace lockstep::cli {

/// Adds --config to `command`: a JSON file with options of the command.
///
///     {"model": "gpt-char", "batch-size": 12, "shuffle": false,
///      "milestones": [4, 9]}
///
/// The keys are the options' long names without dashes. The value of a flag is
/// true or false, and a list is an array. A number or a text is written as on
/// the command line. Options on the command line override the file. "lockstep"
/// is the version that wrote the file. `written` says in the help which files
/// the program itself writes.
void add_config_option(CLI::App& command, const std::string& written = {});

/// Returns the words of a command line that a config file stands for.
/// `arguments` are the words after the command's name. Values of options that
/// occur in `arguments` are left out. Throws BadUsage for a key that is not an
/// option of `command`, and for a value that an option can't have. Throws
/// InvalidArgument for text that is not JSON. `path` is used in these messages.
std::vector<std::string> words_of_config(
    const CLI::App& command, const std::string& path, std::string_view text,
    const std::vector<std::string>& arguments);

/// Returns the `words` of a command line with the words of its --config
/// inserted before the options, if the command in `words` has that option.
/// Throws IoError for a file that can't be read, or is not a regular file of at
/// most 1 MiB.
std::vector<std::string> with_config(const CLI::App& app,
                                     std::vector<std::string> words);

/// Returns the options that `command` was given as a config file that repeats
/// the run. Options that say where output goes are left out.
std::string config_of(const CLI::App& command);

}  // namespace lockstep::cli
