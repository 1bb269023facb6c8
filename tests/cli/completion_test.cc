#include "lockstep/cli/completion.h"

#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/process.h"
#include "tests/cli/program.h"

namespace lockstep {
namespace {

using cli::CommandWords;
using cli::OptionWords;

CommandResult run_shell(const std::string& shell, const std::string& script) {
  return run_command({.arguments = {shell, "-c", script},
                      .environment = {{"LOCKSTEP", kProgram}},
                      .deadline_s = 60});
}

bool has_shell(const std::string& shell) {
  return run_shell("sh", "command -v " + shell).ok();
}

/// Returns the words that bash offers after `typed`. The last word of `typed`
/// is incomplete.
std::vector<std::string> bash_offers(const std::string& typed) {
  const auto result = run_shell(
      "bash", "source <(\"$LOCKSTEP\" completion bash); COMP_WORDS=(" + typed +
                  "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _lockstep; "
                  "printf '%s\\n' \"${COMPREPLY[@]}\"");
  EXPECT_TRUE(result.ok()) << result.err;
  EXPECT_EQ(result.err, "");
  std::vector<std::string> words;
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty()) words.push_back(line);
  }
  return words;
}

using Words = std::vector<std::string>;

TEST(BashCompletion, OffersSubcommands) {
  EXPECT_EQ(bash_offers("lockstep tr"), Words{"train"});
  EXPECT_EQ(bash_offers("lockstep ch"), Words{"check"});
}

TEST(BashCompletion, OffersTheOptionsOfTheSubcommand) {
  EXPECT_EQ(bash_offers("lockstep train --batch"), Words{"--batch-size"});
  EXPECT_EQ(bash_offers("lockstep check --batch"), Words{});
}

TEST(BashCompletion, OffersTheChoicesOfAnOption) {
  EXPECT_EQ(bash_offers("lockstep train --strategy s"), Words{"single"});
  EXPECT_EQ(bash_offers("lockstep train --strategy dp"),
            (Words{"dp", "dp-classic"}));
}

TEST(BashCompletion, OffersTheCollectives) {
  EXPECT_EQ(bash_offers("lockstep bench allr"), Words{"allreduce"});
  EXPECT_EQ(bash_offers("lockstep bench allreduce --backend t"), Words{"tcp"});
}

TEST(BashCompletion, OffersTheShells) {
  EXPECT_EQ(bash_offers("lockstep completion f"), Words{"fish"});
}

TEST(BashCompletion, LeavesFreeValuesToTheShell) {
  EXPECT_EQ(bash_offers("lockstep train --data-dir ''"), Words{});
}

TEST(BashCompletion, HidesCommandsForOurOwnUse) {
  for (const auto& word : bash_offers("lockstep ''")) {
    EXPECT_NE(word, "step-time");
  }
}

TEST(Completion, RefusesAnotherShellAndNamesTheNearest) {
  const Ended ended = run_lockstep({"completion", "bsh"});
  EXPECT_EQ(ended.code, 2);
  EXPECT_NE(ended.err.find("bash"), std::string::npos) << ended.err;
}

// Returns a tree with the characters that are special in the shells' syntaxes.
CommandWords awkward_tree() {
  const OptionWords option{.flag = "--odd",
                           .description = "it's [a]: \\ \"b\" $c `d`",
                           .value = "N:M",
                           .choices = {"1", "2"}};
  CommandWords command{.name = "act", .description = "it's: $HOME"};
  command.options = {option};
  return {.name = "lockstep", .description = "", .commands = {command}};
}

TEST(ZshCompletion, IsValidWhateverTheDescriptions) {
  if (!has_shell("zsh")) GTEST_SKIP() << "zsh is not installed";
  for (const auto& script : {run_lockstep({"completion", "zsh"}).out,
                             cli::zsh_completion(awkward_tree())}) {
    const auto result =
        run_command({.arguments = {"zsh", "-fnc", script}, .deadline_s = 60});
    EXPECT_TRUE(result.ok()) << result.err;
  }
}

TEST(FishCompletion, OffersTheChoicesOfAnOption) {
  if (!has_shell("fish")) GTEST_SKIP() << "fish is not installed";
  const auto result = run_shell(
      "fish",
      "$LOCKSTEP completion fish | source; "
      "complete -C 'lockstep train --strategy dp'; complete -C 'lockstep ch'");
  EXPECT_TRUE(result.ok()) << result.err;
  EXPECT_EQ(result.out.find("dp"), 0u) << result.out;
  EXPECT_NE(result.out.find("\ndp-classic"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("\ncheck\t"), std::string::npos) << result.out;
}

TEST(FishCompletion, IsValidWhateverTheDescriptions) {
  if (!has_shell("fish")) GTEST_SKIP() << "fish is not installed";
  const auto result =
      run_command({.arguments = {"fish", "-c",
                                 cli::fish_completion(awkward_tree()) +
                                     "complete -C 'lockstep act --od'"},
                   .deadline_s = 60});
  EXPECT_TRUE(result.ok()) << result.err;
  EXPECT_EQ(result.out, "--odd\tit's [a]: \\ \"b\" $c `d`\n");
}

}  // namespace
}  // namespace lockstep
