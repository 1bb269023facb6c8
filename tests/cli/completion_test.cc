#include "lockstep/cli/completion.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cli/shells.h"

namespace lockstep {
namespace {

using cli::CommandWords;
using cli::OptionWords;

using Words = std::vector<std::string>;

TEST(BashCompletion, OffersSubcommands) {
  EXPECT_EQ(bash_offers("lockstep tr"), Words{"train"});
  EXPECT_EQ(bash_offers("lockstep da"), Words{"data"});
}

TEST(BashCompletion, OffersTheOptionsOfTheSubcommand) {
  EXPECT_EQ(bash_offers("lockstep train --batch"), Words{"--batch-size"});
  EXPECT_EQ(bash_offers("lockstep run --batch"), Words{});
}

TEST(BashCompletion, OffersTheChoicesOfAnOption) {
  EXPECT_EQ(bash_offers("lockstep train --strategy s"), Words{"single"});
  EXPECT_EQ(bash_offers("lockstep train --strategy dp"),
            (Words{"dp", "dp-classic"}));
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
  EXPECT_NE(result.out.find("\ntrain\t"), std::string::npos) << result.out;
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
