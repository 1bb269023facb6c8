#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace lockstep::cli {

/// Takes from the end of `arguments`, which follow the name of `command`, what
/// is a program of the user's with its own arguments, and returns it: all from
/// the first word that is neither an option of `command` nor an option's value,
/// or all after "--". CLI11 must not see it: it would take options and
/// brackets for its own.
std::vector<std::string> split_program_words(
    const CLI::App& command, std::vector<std::string>& arguments);

/// What `lockstep run` is to run.
const std::vector<std::string>& program_words();
void set_program_words(std::vector<std::string> words);

}  // namespace lockstep::cli
