// The options of a run on a command line and in config.json.
#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/cli/embed/run_flags.h"
#include "lockstep/cli/start/config_file.h"
#include "lockstep/cli/start/program.h"
#include "lockstep/train/option_table.h"
#include "tests/train/option_values.h"

namespace lockstep::cli {
namespace {

using Words = std::vector<std::string>;

/// The command line of a program that trains.
class CommandLine {
 public:
  CommandLine() {
    set_up(app_);
    add_run_options(app_, flags_);
  }
  void parse(Words words) {
    std::ranges::reverse(words);
    app_.parse(words);
  }
  std::string value_of(const std::string& name) {
    const auto table = training::option_table(flags_.options);
    return value_text(*std::ranges::find(table, name, &Option::name));
  }
  std::string config() const { return config_of(app_); }
  Words words(const std::string& config) const {
    return words_of_config(app_, "config.json", config, {});
  }

 private:
  CLI::App app_;
  RunFlags flags_;
};

/// Returns the options of the table that are on the command line.
std::vector<Option> run_options(training::TrainOptions& usual) {
  auto table = training::option_table(usual);
  std::erase_if(table,
                [](const Option& row) { return !row.name.starts_with("--"); });
  return table;
}

TEST(RunOptions, AreReadFromTheCommandLineAndFromTheConfigThatItGives) {
  training::TrainOptions usual;
  for (const Option& option : run_options(usual)) {
    for (const auto& value : training::other_values(option)) {
      CommandLine first;
      Words words{option.name + "=" + value};
      if (!option.needs.empty()) words.push_back(option.needs + "=x");
      first.parse(words);
      EXPECT_EQ(first.value_of(option.name), value) << option.name;
      CommandLine again;
      auto config = nlohmann::json::parse(first.config());
      const std::string key = option.name.substr(2);
      // Options that say where output goes are not kept.
      if (!config.contains(key)) continue;
      config.erase("lockstep");
      auto kept = again.words(config.dump());
      if (!option.needs.empty()) kept.push_back(option.needs + "=x");
      again.parse(kept);
      EXPECT_EQ(again.value_of(option.name), value) << option.name;
    }
  }
}

TEST(RunOptions, KeepTheDefaultsOfAProgramUnlessTheyAreGiven) {
  training::TrainOptions usual;
  for (const Option& option : run_options(usual)) {
    CommandLine none;
    none.parse({});
    EXPECT_EQ(none.value_of(option.name), value_text(option)) << option.name;
  }
}

TEST(RunOptions, AreRefusedOutOfRange) {
  training::TrainOptions usual;
  for (const Option& option : run_options(usual)) {
    if (option.words.empty() && !option.range) continue;
    CommandLine line;
    EXPECT_THROW(line.parse({option.name + "=?"}), CLI::ValidationError)
        << option.name;
  }
}

TEST(RunOptions, HaveAsManyEpochsAsTheStepsNeed) {
  const auto epochs_of = [](const Words& words) {
    CLI::App app;
    set_up(app);
    RunFlags flags;
    add_run_options(app, flags);
    Words reversed(words.rbegin(), words.rend());
    app.parse(reversed);
    return to_train_options(flags).epochs();
  };
  EXPECT_EQ(epochs_of({}), 1);
  EXPECT_EQ(epochs_of({"--max-steps=5"}), 0);
  EXPECT_EQ(epochs_of({"--max-steps=5", "--epochs=3"}), 3);
}

}  // namespace
}  // namespace lockstep::cli
