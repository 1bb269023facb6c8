// A user's program that embeds Lockstep: how it ends, and that it works the
// same in every locale.
// Tier: full, by case. Each case starts a program.
#include <cstdlib>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/exit_code.h"
#include "tests/base/compiled_locale.h"
#include "tests/base/expect_problem.h"
#include "tests/base/temporary_folder.h"
#include "tests/cli/ddp_runs.h"
#include "tests/cli/program.h"

namespace lockstep::embedded_test {
namespace {

using ddp_runs::joined;
using ddp_runs::output_of;
using Words = std::vector<std::string>;

const std::string kEmbedded = LOCKSTEP_BINARY_DIR "/bin/embedded_program";

struct Outcome {
  int code = 0;
  std::string text;  // from stdout and stderr
};

/// Runs the program with `environment`, "NAME=value ...".
Outcome embedded(const std::string& environment, const Words& words) {
  Outcome outcome;
  outcome.text = output_of(
      "env " + environment + " " + kEmbedded + joined(words), outcome.code);
  return outcome;
}

Words two_steps(Words more) {
  more.insert(more.end(), {"--max-steps", "2", "--no-eval"});
  return more;
}

TEST(ExitCodes, TellThatTrainingFailedFromBadUsage) {
  const Words one = two_steps({"--devices", "cpu"});
  EXPECT_EQ(embedded("", one).code, kExitDone);
  const Outcome failed = embedded("FAILURE=no-loss", one);
  EXPECT_EQ(failed.code, kExitTrainingFailed) << failed.text;
  expect_problem(failed.text, ErrorCode::kBadLoss, {"replica 0"});
  EXPECT_EQ(count_of(failed.text, "[replica-failed]"), 0) << failed.text;

  const Outcome typed = embedded("", two_steps({"--lr"}));
  EXPECT_EQ(typed.code, kExitBadUsage) << typed.text;
}

TEST(ExitCodes, OfRanksThatCanNotTrainAreThatOfTheJob) {
  const Words ranks = two_steps({"--strategy", "ddp", "--devices", "2xcpu"});
  const Outcome outcome = embedded("FAILURE=foreign-leaf", ranks);
  EXPECT_EQ(outcome.code, kExitTrainingFailed) << outcome.text;
  expect_problem(outcome.text, ErrorCode::kUnsupportedGraph,
                 {"no parameter of the module"});
  EXPECT_PRED2(contains, outcome.text, "exit code 70");
}

TEST(ExitCodes, OfADistributedDataParallelLoopAreNoBadUsage) {
  for (const auto& [failure, code] :
       {std::pair{"unused-parameters", ErrorCode::kUnusedParameters},
        std::pair{"other-parameters", ErrorCode::kParametersDiffer}}) {
    const auto ended = run_lockstep(
        {"run", "--nproc-per-node", "2", "--", kEmbedded, "by-hand"},
        {{"FAILURE", failure}});
    EXPECT_EQ(ended.code, kExitTrainingFailed) << ended.err;
    expect_problem(ended.err, code, {"exit code 70"});
  }
  const auto ended = run_lockstep(
      {"run", "--nproc-per-node", "2", "--", kEmbedded, "by-hand"});
  EXPECT_EQ(ended.code, kExitDone) << ended.err;
}

TEST(EmbeddedProgram, HasTheDefaultsOfItsAuthor) {
  const TemporaryFolder folder;
  const auto report_of = [&](const std::string& strategy, Words words) {
    const std::string path = folder.path("run.json");
    words.insert(words.end(), {"--max-steps", "2", "--report", path});
    const Outcome outcome = embedded("STRATEGY=" + strategy, words);
    EXPECT_EQ(outcome.code, kExitDone) << outcome.text;
    return nlohmann::json::parse(content_of(path));
  };
  for (const std::string strategy : {"dp", "dp-classic", "ddp"}) {
    const auto report = report_of(strategy, {});
    EXPECT_EQ(report.at("strategy"), strategy);
    EXPECT_EQ(report.at("world_size"), 2) << strategy;
    EXPECT_EQ(report.at("precision"), "bf16") << strategy;
    EXPECT_EQ(report.at("test").at("samples"), 0) << strategy;
  }
  const auto report = report_of("dp", {"--strategy", "single", "--devices",
                                       "cpu", "--precision", "fp32"});
  EXPECT_EQ(report.at("strategy"), "single");
  EXPECT_EQ(report.at("world_size"), 1);
  EXPECT_EQ(report.at("precision"), "fp32");
}

TEST(EmbeddedProgram, MeansTheSameInEveryLocale) {
  const TemporaryFolder folder;
  write_text(folder.path("options.json"), R"({"spike-sigma": 1.5})");
  const auto run = [&](const std::string& environment,
                       const std::string& name) {
    const Outcome outcome = embedded(
        environment, two_steps({"--devices", "cpu", "--clip-grad-norm", "0.5",
                                "--config", folder.path("options.json"),
                                "--out-dir", folder.path(name)}));
    EXPECT_EQ(outcome.code, kExitDone) << outcome.text;
    return content_of(folder.path(name + "/run.json"));
  };
  const std::string plain = run("", "plain");
  for (const char* source : {"de_DE", "ps_AF"}) {
    const CompiledLocale locale(source);
    const std::string environment =
        "LOCPATH=" + locale.folder() + " LOCALE=" + locale.name();
    run(environment, source);
    const auto config = nlohmann::json::parse(
        content_of(folder.path(source + std::string("/config.json"))));
    EXPECT_EQ(config["clip-grad-norm"], 0.5);
    EXPECT_EQ(config["spike-sigma"], 1.5);
    EXPECT_EQ(config, nlohmann::json::parse(
                          content_of(folder.path("plain/config.json"))));
    const Outcome refused =
        embedded(environment, two_steps({"--clip-grad-norm", "0,5"}));
    EXPECT_EQ(refused.code, kExitBadUsage) << refused.text;
    EXPECT_PRED2(contains, embedded(environment, {"--help-all"}).text, "0.9");
  }
  EXPECT_PRED2(contains, plain, "0.");
}

}  // namespace
}  // namespace lockstep::embedded_test
