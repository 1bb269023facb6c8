// The options of a run: what their table promises, and what happens to every
// two of them.
#include "lockstep/train/option_table.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/train/state/run_settings.h"
#include "lockstep/train/training_plan.h"
#include "tests/base/expect_problem.h"
#include "tests/train/option_values.h"
#include "tests/train/runs.h"

namespace lockstep::training {
namespace {

/// An option with a value other than its default.
struct Choice {
  std::string name;
  std::string value;
};

/// Options that choices are made for.
class ChosenOptions {
 public:
  explicit ChosenOptions(Strategy strategy) {
    options_.devices(devices("cpu"));
    options_.strategy(strategy);
  }
  TrainOptions& operator*() { return options_; }
  TrainOptions* operator->() { return &options_; }

  void choose(const Choice& choice) {
    const auto table = option_table(options_);
    const auto row = std::ranges::find(table, choice.name, &Option::name);
    set_value(*row, choice.value);
  }

 private:
  TrainOptions options_;
};

std::vector<Choice> all_choices() {
  TrainOptions usual;
  std::vector<Choice> choices;
  for (const Option& option : option_table(usual)) {
    for (const auto& value : other_values(option)) {
      choices.push_back({option.name, value});
    }
  }
  return choices;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// Returns true if an error tells users that it is about an option.
bool names(const std::string& error, const std::string& option) {
  TrainOptions usual;
  const auto table = option_table(usual);
  const auto row = std::ranges::find(table, option, &Option::name);
  return has(error, row->name) ||
         has(error, row->member.empty() ? key_of(*row) : row->member);
}

/// Returns the conflict that the options have.
const Conflict* conflict_of(const TrainOptions& options) {
  for (const Conflict& conflict : conflicts()) {
    if (conflict.is_met(options)) return &conflict;
  }
  return nullptr;
}

/// Makes a plan. Returns the message of the refusal, if it is refused. Any
/// other exception fails the test.
std::optional<std::string> refusal_of_plan(const TrainOptions& options) {
  try {
    const Plan plan = make_plan(options);
    EXPECT_GE(plan.shards, 1);
    EXPECT_GE(plan.intra_op_threads, 1);
    EXPECT_EQ(plan.devices.size(), 1u);
    return std::nullopt;
  } catch (const InvalidArgument& error) {
    return error.what();
  }
}

TEST(OptionTable, HasEachOptionOnce) {
  TrainOptions usual;
  std::set<std::string> names, keys;
  for (const Option& option : option_table(usual)) {
    EXPECT_TRUE(names.insert(option.name).second) << option.name;
    EXPECT_TRUE(keys.insert(key_of(option)).second) << option.name;
    EXPECT_FALSE(option.help.empty()) << option.name;
    EXPECT_FALSE(other_values(option).empty()) << option.name;
  }
  for (const Option& option : option_table(usual)) {
    if (option.needs.empty()) continue;
    EXPECT_TRUE(names.contains(option.needs)) << option.name;
  }
}

TEST(OptionTable, ReadsWhatItWrites) {
  for (const Choice& choice : all_choices()) {
    ChosenOptions chosen(Strategy::kSingle);
    chosen.choose(choice);
    const auto table = option_table(*chosen);
    const auto row = std::ranges::find(table, choice.name, &Option::name);
    EXPECT_EQ(value_text(*row), choice.value) << choice.name;
    // Nothing else has changed.
    TrainOptions usual;
    usual.strategy(Strategy::kSingle);
    const auto defaults = option_table(usual);
    for (size_t i = 0; i < table.size(); ++i) {
      if (table[i].name == choice.name) continue;
      EXPECT_EQ(value_text(table[i]), value_text(defaults[i]))
          << choice.name << " changes " << table[i].name;
    }
  }
}

TEST(OptionTable, RefusesNumbersOutOfRange) {
  TrainOptions usual;
  for (const Option& option : option_table(usual)) {
    if (!option.range || is_flag(option)) continue;
    if (std::holds_alternative<TextValue>(option.value)) continue;
    if (std::holds_alternative<uint64_t*>(option.value)) continue;
    const std::string below =
        std::to_string(static_cast<int64_t>(option.range->least) - 1);
    ChosenOptions chosen(Strategy::kDistributed);
    chosen.choose({option.name, below});
    const auto error =
        error_of<InvalidArgument>([&] { check_options(*chosen); });
    expect_problem(error, ErrorCode::kBadOption, {below});
    EXPECT_TRUE(names(error, option.name)) << error;
  }
}

TEST(OptionTable, EveryTwoOptionsMakeAPlanOrAreRefusedByName) {
  std::set<const Conflict*> met;
  const auto choices = all_choices();
  for (const auto strategy : {Strategy::kSingle, Strategy::kDistributed}) {
    for (const Choice& one : choices) {
      ChosenOptions first(strategy);
      first.choose(one);
      for (const Choice& other : choices) {
        if (other.name <= one.name) continue;
        ChosenOptions chosen = first;
        chosen.choose(other);
        const auto error = refusal_of_plan(*chosen);
        const Conflict* conflict = conflict_of(*chosen);
        const std::string pair =
            one.name + " " + one.value + ", " + other.name + " " + other.value;
        if (conflict != nullptr) {
          met.insert(conflict);
          ASSERT_TRUE(error) << pair;
          EXPECT_TRUE(has(*error, conflict->why)) << pair << ": " << *error;
          EXPECT_TRUE(has(*error, conflict->fix)) << pair << ": " << *error;
        }
        if (!error) continue;
        EXPECT_TRUE(names(*error, one.name) || names(*error, other.name))
            << pair << ": " << *error;
      }
    }
  }
  for (const Conflict& conflict : conflicts()) {
    EXPECT_TRUE(met.contains(&conflict))
        << conflict.option << " and " << conflict.other;
  }
}

TEST(Conflicts, AreAboutOptionsOfTheTable) {
  TrainOptions usual;
  const auto table = option_table(usual);
  for (const Conflict& conflict : conflicts()) {
    const std::string other = conflict.other;
    for (const auto& name :
         {std::string(conflict.option), other.substr(0, other.find(' '))}) {
      EXPECT_NE(std::ranges::find(table, name, &Option::name), table.end())
          << name;
    }
    EXPECT_FALSE(conflict.is_met(usual)) << conflict.option;
  }
}

TEST(Conflicts, NameTheOptionsAsTheyAreWritten) {
  ChosenOptions chosen(Strategy::kDistributed);
  chosen->communication().local_steps(4);
  chosen->checkpoint().every(6);
  expect_problem(error_of<InvalidArgument>([&] { check_options(*chosen); }),
                 ErrorCode::kBadOption,
                 {"--checkpoint-every 6 and --local-steps 4"});
  chosen->checkpoint().every(8);
  check_options(*chosen);
  chosen->strategy(Strategy::kDataParallel);
  expect_problem(error_of<InvalidArgument>([&] { check_options(*chosen); }),
                 ErrorCode::kBadOption,
                 {"--local-steps 4 needs --strategy ddp"});
}

/// Returns the settings of a run with `ranks` ranks that the table gives.
Settings settings_with(const TrainOptions& options, int64_t ranks) {
  tasks::ImageTask task(sharded_run());
  Settings settings = settings_of(
      task, options, {.ranks = ranks, .shards = 4, .intra_op_threads = 2}, 100,
      "data");
  for (const auto& [name, value] : task.settings()) settings.erase(name);
  return settings;
}

// Runs that an earlier version began must go on.
TEST(RunSettings, AreThoseOfEarlierVersions) {
  TrainOptions options;
  const Settings always{{"batch_size", "64"},
                        {"clip_grad_norm", "0"},
                        {"data_sha256", "data"},
                        {"drop_last", "false"},
                        {"intra_op_threads", "2"},
                        {"precision", "float32"},
                        {"reduction", "tree over shards"},
                        {"seed", "0"},
                        {"shards", "4"},
                        {"shuffle", "true"},
                        {"total_steps", "100"}};
  EXPECT_EQ(settings_with(options, 1), always);
  EXPECT_EQ(settings_with(options, 2), always);
  options.precision(Precision::kBFloat16);
  options.communication()
      .compression(GradCompression::kPowerSgd)
      .local_steps(2);
  options.spikes().action(OnSpike::kRollBack);
  options.checkpoint().every(8);
  Settings all = always;
  all["precision"] = "bf16";
  all.insert({{"on_spike", "roll-back"},
              {"spike_sigma", "6"},
              {"spike_window", "128"},
              {"checkpoint_every", "8"}});
  EXPECT_EQ(settings_with(options, 1), all);
  all.insert({{"grad_compression", "powersgd"},
              {"powersgd_rank", "4"},
              {"powersgd_ranks", "2"},
              {"ranks", "2"},
              {"local_steps", "2"},
              {"outer_optimizer", "nesterov"},
              {"outer_lr", "0"},
              {"outer_momentum", "0.9"}});
  EXPECT_EQ(settings_with(options, 2), all);
}

}  // namespace
}  // namespace lockstep::training
