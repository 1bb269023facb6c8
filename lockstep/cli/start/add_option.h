#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "lockstep/cli/start/checks.h"

// Adds options whose values have a common form. CLI11 reads fractional numbers
// with strtold(), so a program with a German locale would expect "0,5" for a
// half. add_number() expects a decimal point, whatever the locale is.
namespace lockstep::cli {

/// Whole numbers that an option accepts.
struct Range {
  int64_t least = 0;
  int64_t most = std::numeric_limits<int64_t>::max();
};

/// Adds an option with a whole number, N in the help.
template <class Number>
CLI::Option* add_count(CLI::App& app, const std::string& name, Number& value,
                       Range range, const std::string& description) {
  return app.add_option(name, value, description)
      ->type_name("N")
      ->check(whole_number(range.least, range.most));
}

/// Adds an option with a fractional number, X in the help.
CLI::Option* add_number(CLI::App& app, const std::string& name, double& value,
                        const std::string& description);
CLI::Option* add_number(CLI::App& app, const std::string& name,
                        std::optional<double>& value,
                        const std::string& description);

/// Adds an option with one of `words`, NAME in the help.
CLI::Option* add_choice(CLI::App& app, const std::string& name,
                        std::string& value, std::vector<std::string> words,
                        const std::string& description);

/// Adds an option with the path of a file or folder, which is empty by default.
/// `type` is its form in the help.
CLI::Option* add_path(CLI::App& app, const std::string& name, std::string& path,
                      const std::string& description,
                      const std::string& type = "PATH");

/// Options of a topic, by their names.
struct DetailTopic {
  std::string topic;
  std::vector<std::string> options;
};
/// Moves options out of `--help`, which shows what most users need, to the
/// topics of `--help-all`.
void show_in_details(CLI::App& app, const std::vector<DetailTopic>& topics);
/// Returns the topic of a group of options that only `--help-all` shows, and an
/// empty text for any other group.
std::string topic_of_details(const std::string& group);

}  // namespace lockstep::cli
