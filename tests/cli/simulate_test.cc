// Tier: nightly. A tool.
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/output.h"
#include "tests/base/expect_problem.h"
#include "tests/base/temporary_folder.h"
#include "tests/cli/program.h"

namespace lockstep {
namespace {

using nlohmann::json;

using Words = std::vector<std::string>;

Words words_of(const Words& more) {
  Words words{"simulate", "--compute-ms", "200",  "--bytes",
              "2e9",      "--algorithm",  "ring", "--host-bandwidth",
              "400",      "--bandwidth",  "50"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

json report_of(const Words& more) {
  const TemporaryFolder folder;
  auto words = words_of(more);
  words.insert(words.end(), {"--report", folder.path("report.json")});
  const Ended ended = run_lockstep(words);
  EXPECT_EQ(ended.code, 0) << ended.err;
  return json::parse(read_file(folder.path("report.json"), 1 << 20));
}

TEST(Simulate, PrintsATableOfRanks) {
  const Ended ended = run_lockstep(words_of({"--ranks", "8,10000"}));
  EXPECT_EQ(ended.code, 0) << ended.err;
  // 2 * 7/8 * 2 GB at 400 GB/s.
  for (const char* part : {"efficiency", "208.75", "95.8 %", "10000"}) {
    EXPECT_PRED2(contains, ended.out, part);
  }
  EXPECT_FALSE(contains(ended.out, "Young/Daly"));
}

TEST(Simulate, WritesAReport) {
  const json report = report_of({"--ranks", "16", "--samples-per-rank", "32",
                                 "--failures-per-node-day", "0.01",
                                 "--checkpoint-s", "10", "--total", "1e9"});
  const json& result = report["results"][0];
  EXPECT_EQ(result["hosts"], 2);
  const double step_s = 0.2 + 2 * 15 / 16.0 * 2e9 / 50e9;
  EXPECT_NEAR(result["step_s"].get<double>(), step_s, 1e-9);
  EXPECT_NEAR(result["samples_per_s_of_rank"].get<double>(), 32 / step_s, 1e-6);
  EXPECT_EQ(result["checkpoint_interval_s"], result["young_daly_s"]);
  const double ratio = result["training_time_ratio"];
  EXPECT_NEAR(ratio, result["expected_training_time_ratio"].get<double>(),
              0.01);
  EXPECT_NEAR(result["time_to_train_s"].get<double>(),
              1e9 / (16 * 32 / step_s) / ratio, 1);
  EXPECT_EQ(report["options"]["checkpoint-s"], 10);
}

TEST(Simulate, GivesTheSameForOneSeed) {
  const Words words{"--variation",    "0.1", "--failures-per-node-day", "0.1",
                    "--checkpoint-s", "10"};
  EXPECT_EQ(report_of(words), report_of(words));
  Words other = words;
  other.insert(other.end(), {"--seed", "2"});
  EXPECT_NE(report_of(words)["results"], report_of(other)["results"]);
}

TEST(Simulate, ReadsItsOptionsFromAFile) {
  const TemporaryFolder folder;
  write_atomically(folder.path("cluster.json"),
                   R"({"compute-ms": 200, "bytes": 2e9, "algorithm": "ring",
                       "host-bandwidth": 400, "bandwidth": 50,
                       "ranks": [8, 10000]})");
  EXPECT_EQ(
      run_lockstep({"simulate", "--config", folder.path("cluster.json")}).out,
      run_lockstep(words_of({"--ranks", "8,10000"})).out);
}

TEST(Simulate, TakesTheProfileOfARun) {
  const TemporaryFolder folder;
  const std::string run = folder.path("run.json");
  const Ended trained =
      run_lockstep({"train", "--model", "mlp", "--devices", "cpu",
                    "--max-steps", "30", "--no-eval", "--report", run});
  ASSERT_EQ(trained.code, 0) << trained.err;
  const json run_json = json::parse(read_file(run, 1 << 24));
  const std::string report = folder.path("report.json");
  const Ended ended = run_lockstep({"simulate", "--run", run, "--ranks", "2,64",
                                    "--ranks-per-host", "1", "--bandwidth", "1",
                                    "--report", report});
  ASSERT_EQ(ended.code, 0) << ended.err;
  const json result = json::parse(read_file(report, 1 << 20))["results"][0];
  EXPECT_NEAR(result["communication_s"].get<double>(),
              run_json["parameters"].get<double>() * 4 / 1e9, 1e-6);
  EXPECT_GE(result["compute_s"], run_json["step_time_s"]["min"]);
}

TEST(Simulate, ExplainsWhatIsMissingOrWrong) {
  const std::vector<std::pair<Words, Words>> cases{
      {{"simulate"}, {"--compute-ms", "--run"}},
      {{"simulate", "--compute-ms", "1"}, {"--bytes"}},
      {{"simulate", "--compute-ms", "0", "--bytes", "1"},
       {"--compute-ms", "above 0"}},
      {{"simulate", "--compute-ms", "1", "--bytes", "1e9", "--ranks", "2"},
       {"within a host", "--host-bandwidth"}},
      {words_of({"--ranks", "10001"}), {"--ranks", "10000", "10001"}},
      {words_of({"--overlap", "1.5"}), {"--overlap", "1.5"}},
      {words_of({"--bus-bandwidth", "1:436,x"}), {"--bus-bandwidth", "'x'"}},
      {words_of({"--bus-bandwidth", "1:436,2:362", "--ranks", "24"}),
       {"3 hosts", "--bus-bandwidth"}},
      {words_of({"--checkpoint-interval", "often"}),
       {"--checkpoint-interval", "'often'"}},
      {words_of({"--failures-per-node-day", "1"}),
       {"--checkpoint-s", "--checkpoint-interval"}},
      {words_of({"--config", "/dev/null/none"}), {"/dev/null/none"}}};
  for (const auto& [words, parts] : cases) {
    const Ended ended = run_lockstep(words);
    EXPECT_NE(ended.code, 0);
    EXPECT_EQ(ended.out, "");
    for (const auto& part : parts) EXPECT_PRED2(contains, ended.err, part);
  }
}

}  // namespace
}  // namespace lockstep
