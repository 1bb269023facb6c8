// Tier: full, by case. Each case starts the program.
#include <algorithm>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/cores.h"
#include "lockstep/train/run_report.h"
#include "tests/base/temporary_folder.h"
#include "tests/cli/program.h"

namespace lockstep {
namespace {

using nlohmann::json;

std::string output_of(const std::vector<std::string>& arguments) {
  const Ended ended = run_lockstep(arguments);
  EXPECT_EQ(ended.code, 0) << ended.err;
  return ended.out;
}

// Compares the output of `split` with the table of practical 5.
TEST(Split, PrintsThePracticalsTable) {
  const auto text =
      output_of({"split", "--batch-size", "64", "--devices", "2,3,5"});
  for (const char* part : {"#GPUs", "Batch size", "Split per device", "32/32",
                           "22/22/20", "13/13/13/13/12"}) {
    EXPECT_PRED2(contains, text, part);
  }
}

TEST(Split, ExplainsIdleDevices) {
  const auto text = output_of({"split", "--batch-size", "5", "--devices", "4"});
  EXPECT_PRED2(contains, text, "2/2/1 (1 idle)");
  EXPECT_PRED2(contains, text, "and device 3\nis idle.\n");
}

TEST(Split, PrintsJson) {
  const auto rows = json::parse(
      output_of({"split", "--batch-size", "5", "--devices", "4,5", "--json"}));
  EXPECT_EQ(rows[0]["split"], json::parse("[2, 2, 1]"));
  EXPECT_EQ(rows[0]["idle_devices"], 1);
  EXPECT_EQ(rows[1]["idle_devices"], 0);
}

TEST(Help, ExplainsEveryCommandAndOption) {
  const auto all = output_of({"help"});
  EXPECT_EQ(all, output_of({"--help"}));
  for (const std::string& command : commands_in(all)) {
    const auto help = output_of({"help", command});
    EXPECT_EQ(help, output_of({command, "--help"}));
    EXPECT_PRED2(contains, help, "Usage: lockstep " + command);
  }
}

TEST(Help, FitsATerminal) {
  for (const std::string& command : commands_in(output_of({"help"}))) {
    std::istringstream lines(output_of({command, "--help-all"}));
    for (std::string line; std::getline(lines, line);) {
      EXPECT_LE(line.size(), 80u) << line;
    }
  }
}

TEST(Help, ShowsDefaults) {
  const auto help = output_of({"train", "--help-all"});
  for (const char* part : {"--batch-size N [64]", "--model NAME [cnn]",
                           "--lr X [", "--milestones N,N", "[4,9,14]"}) {
    EXPECT_PRED2(contains, help, part);
  }
}

// A user's first look at a command with 76 options.
TEST(Help, LeavesWhatFewNeedToHelpAll) {
  const auto options_in = [](const std::string& help) {
    std::set<std::string> names;
    std::istringstream lines(help);
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("  --")) {
        names.insert(line.substr(2, line.find(' ', 2) - 2));
      }
    }
    return names;
  };
  const auto help = output_of({"train", "--help"});
  const auto common = options_in(help);
  const auto all = options_in(output_of({"train", "--help-all"}));
  EXPECT_LE(common.size(), 25u + 1) << "with --help-all";
  EXPECT_TRUE(std::ranges::includes(all, common));
  EXPECT_PRED2(contains, help,
               fmt::format("--help-all shows {} more options.",
                           all.size() - common.size()));
  EXPECT_TRUE(all.contains("--powersgd-rank"));
}

TEST(Version, IsPrinted) {
  EXPECT_PRED2(contains, output_of({"--version"}), "lockstep 0.");
}

TEST(Train, TakesUnderscoresAsTorchrunDoes) {
  EXPECT_PRED2(contains,
               output_of({"split", "--batch_size=6", "--devices", "3"}),
               "2/2/2");
}

TEST(Train, WritesReportsThatAgree) {
  const TemporaryFolder folder;
  const auto text =
      output_of({"train", "--model", "mlp", "--max-steps", "3", "--out-dir",
                 folder.path("run"), "--report", folder.path("report.json"),
                 "--log-every", "1", "--no-eval"});
  EXPECT_PRED2(contains, text, "step 3/3");
  EXPECT_PRED2(contains, text, "] Epoch 0 | Batchsize: 64 | Steps: 3 | LR: ");
  const auto report = json::parse(content_of(folder.path("report.json")));
  EXPECT_EQ(report, json::parse(content_of(folder.path("run/run.json"))));
  EXPECT_EQ(training::run_report_from_json(report).steps, 3);
  EXPECT_EQ(report["command"][1], "train");
  EXPECT_PRED2(contains, text, report["parameter_sha256"].get<std::string>());
}

TEST(Train, QuietPrintsNothing) {
  const auto ended = run_lockstep(
      {"train", "--model", "mlp", "--max-steps", "2", "--no-eval", "--quiet"});
  EXPECT_EQ(ended.code, 0);
  EXPECT_EQ(ended.out + ended.err, "");
}

TEST(Train, GivesTheSameDigestForTheSameShards) {
  if (allowed_cores().size() < 2) GTEST_SKIP() << "needs 2 cores";
  const TemporaryFolder folder;
  const auto digest_of = [&](std::vector<std::string> arguments) {
    const std::string path = folder.path("report.json");
    for (const char* more : {"--model", "mlp", "--max-steps", "5", "--shards",
                             "2", "--no-eval", "--report"}) {
      arguments.emplace_back(more);
    }
    arguments.push_back(path);
    output_of(arguments);
    return json::parse(content_of(path))["parameter_sha256"];
  };
  const auto single = digest_of({"train", "--strategy", "single"});
  const auto parallel =
      digest_of({"train", "--strategy", "dp", "--devices", "2xcpu"});
  EXPECT_EQ(single, parallel);
}

TEST(Eval, FindsTheAccuracyThatTrainingFound) {
  const TemporaryFolder folder;
  const std::string run = folder.path("run");
  output_of({"train", "--model", "mlp", "--max-steps", "5", "--out-dir", run});
  const auto trained = json::parse(content_of(run + "/run.json"))["test"];
  const auto result =
      json::parse(output_of({"eval", "--checkpoint", run, "--json"}));
  EXPECT_EQ(result["test"]["samples"], 2000);
  EXPECT_EQ(result["test"]["samples"], trained["samples"]);
  EXPECT_EQ(result["test"]["accuracy"], trained["accuracy"]);
  EXPECT_NEAR(result["test"]["loss"].get<double>(),
              trained["loss"].get<double>(), 1e-5);
  EXPECT_EQ(result["step"], 5);
  EXPECT_PRED2(contains, output_of({"eval", "--checkpoint", run}),
               "Test Acc: ");
}

TEST(Eval, ComputesInThePrecisionOfTheRun) {
  const TemporaryFolder folder;
  const std::string run = folder.path("run");
  output_of({"train", "--model", "mlp", "--max-steps", "5", "--precision",
             "bf16", "--out-dir", run});
  const auto trained = json::parse(content_of(run + "/run.json"))["test"];
  const auto eval = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"eval", "--checkpoint", run, "--json"});
    return json::parse(output_of(more));
  };
  const auto own = eval({}), fp32 = eval({"--precision", "fp32"});
  EXPECT_EQ(own["precision"], "bf16");
  EXPECT_EQ(own["test"]["accuracy"], trained["accuracy"]);
  EXPECT_EQ(fp32["precision"], "fp32");
  EXPECT_NE(fp32["test"]["loss"], own["test"]["loss"]);
  EXPECT_PRED2(contains, output_of({"eval", "--checkpoint", run}), ", in bf16");
}

}  // namespace
}  // namespace lockstep
