// `lockstep compare --runs`: its page of finished runs, and the runs that it
// refuses.
// Tier: nightly. A tool.
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/process.h"
#include "tests/base/expect_problem.h"
#include "tests/checkpoint/python.h"
#include "tests/cli/run_folders.h"

namespace lockstep::report_test {
namespace {

using namespace run_folders;  // NOLINT
using nlohmann::json;

/// One run of each kind, trained once for all tests.
class Report : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<TemporaryFolder>();
    for (const char* strategy : {"single", "dp", "ddp"}) {
      train_into(folder_->path(strategy), strategy);
    }
  }
  static void TearDownTestSuite() { folder_.reset(); }

  static std::string path(const std::string& name) {
    return folder_->path(name);
  }
  static json run_json(const std::string& strategy) {
    return read_json(path(strategy + "/run.json"));
  }

 private:
  static std::unique_ptr<TemporaryFolder> folder_;
};

std::unique_ptr<TemporaryFolder> Report::folder_;

TEST_F(Report, ShowsEveryPartOfTheRuns) {
  const Ended ended = run_lockstep(
      {"compare", "--runs",
       path("single") + "," + path("dp/run.json") + "," + path("ddp"), "--html",
       path("page.html")});
  ASSERT_EQ(ended.code, 0) << ended.err;
  EXPECT_PRED2(contains, ended.out, "dp");
  const std::string page = content_of(path("page.html"));
  for (const char* part :
       {"Speed-up", "How long steps take", "Step time over the run",
        "A typical step of single", "A typical step of ddp", "rank 1  cpu:1",
        "Loss over the run", "ddp evaluation", "How devices are connected",
        "Machine and software", "Kernel", "LibTorch", "--eval-every 5"}) {
    EXPECT_PRED2(contains, page, part);
  }
}

TEST_F(Report, ShowsRunsOfDifferentWorkWithoutASpeedUp) {
  json other = run_json("dp");
  other["model"] = "cnn";
  other["batch_size"] = 2 * other["batch_size"].get<int>();
  write_json(path("other.json"), other);
  const Ended ended = run_lockstep(
      {"compare", "--allow-different-work", "--runs", path("single"),
       path("other.json"), "--html", path("different.html")});
  ASSERT_EQ(ended.code, 0) << ended.err;
  const std::string page = content_of(path("different.html"));
  EXPECT_PRED2(contains, page, "did different work");
  EXPECT_PRED2(contains, page, "cnn");
  EXPECT_FALSE(contains(page, "times as fast"));
}

TEST_F(Report, EscapesWhatIsHostile) {
  json hostile = run_json("single");
  const std::string attack = "\"'><script>alert(1)</script>\x01<img src=x>";
  hostile["model"] = attack;
  hostile["strategy"] = attack;
  hostile["command"] = {"lockstep", attack};
  hostile["devices"][0]["name"] = attack;
  hostile["environment"]["host"] = attack;
  hostile["environment"]["variables"] = {{attack, attack}};
  hostile["topology"]["devices"][0]["cpu_affinity"] = attack;
  hostile["time_line"][0]["lanes"][0] = attack;
  hostile["epochs"][0]["train_" + attack] = 1;
  hostile["test"][attack] = 1;
  write_json(path("hostile.json"), hostile);
  const Ended ended = run_lockstep({"compare", "--runs", path("hostile.json"),
                                    "--html", path("hostile.html")});
  ASSERT_EQ(ended.code, 0) << ended.err;
  const std::string page = content_of(path("hostile.html"));
  EXPECT_FALSE(contains(page, "<script"));
  EXPECT_FALSE(contains(page, "<img"));
  EXPECT_FALSE(contains(page, "\x01"));
  EXPECT_PRED2(contains, page, "&lt;script&gt;alert(1)&lt;/script&gt;");
}

TEST_F(Report, ReadsRunsOfEarlierVersions) {
  json early = run_json("dp");
  for (const char* key :
       {"started_at", "step_time_percentiles_s", "step_times", "skipped_at",
        "environment", "topology", "time_line"}) {
    ASSERT_EQ(early.erase(key), 1u) << key;
  }
  write_json(path("early.json"), early);
  const Ended ended = run_lockstep(
      {"compare", "--runs", path("early.json"), "--html", path("early.html")});
  ASSERT_EQ(ended.code, 0) << ended.err;
  EXPECT_PRED2(contains, content_of(path("early.html")), "Speed-up");
  // The memory over the run, which later versions don't record.
  early["memory"] = {{"steps", {1}}, {"held_bytes", {{1}}}};
  write_json(path("early.json"), early);
  EXPECT_EQ(run_lockstep({"compare", "--runs", path("early.json")}).code, 0);
  const Ended trace = run_lockstep(
      {"compare", "--runs", path("early.json"), "--trace", path("early")});
  EXPECT_EQ(trace.code, 1);
  expect_problem(trace.err, ErrorCode::kMalformedData, {"dp"});
}

TEST_F(Report, RefusesRecordsThatCantBe) {
  const std::vector<std::pair<const char*, json>> cases{
      {"step_time_percentiles_s", json::parse("[1, 2]")},
      {"step_times", json::parse(R"({"steps": [1, 2], "seconds": [1]})")},
      {"step_times", json::parse(R"({"steps": [2, 1], "seconds": [1, 1]})")},
      {"environment", json::parse(R"({"cores": "many"})")},
      {"time_line", json::parse(R"([{"rank": 0}])")},
  };
  for (const auto& [key, value] : cases) {
    json broken = run_json("dp");
    broken[key] = value;
    write_json(path("broken.json"), broken);
    const Ended ended = run_lockstep({"compare", "--runs", path("broken.json"),
                                      "--html", path("broken.html")});
    EXPECT_EQ(ended.code, 1) << key;
    EXPECT_PRED2(contains, ended.err, "broken.json") << key;
    EXPECT_FALSE(std::filesystem::exists(path("broken.html"))) << key;
  }
}

TEST_F(Report, NamesWhatIsNoRun) {
  const Ended missing = run_lockstep({"compare", "--runs", path("nowhere")});
  EXPECT_EQ(missing.code, 1);
  expect_problem(missing.err, ErrorCode::kFileAccess, {path("nowhere")});
  std::filesystem::create_directory(path("empty"));
  const Ended empty = run_lockstep({"compare", "--runs", path("empty")});
  EXPECT_EQ(empty.code, 1);
  expect_problem(empty.err, ErrorCode::kFileAccess, {path("empty/run.json")});
  write_text(path("text"), "hello");
  const Ended text = run_lockstep({"compare", "--runs", path("text")});
  EXPECT_EQ(text.code, 1);
  expect_problem(text.err, ErrorCode::kMalformedData, {path("text")});
}

TEST_F(Report, FindsOutFirstThatItCantWrite) {
  for (const char* option : {"--html", "--trace", "--svg"}) {
    const Ended ended = run_lockstep(
        {"compare", "--runs", path("nowhere"), option, "/proc/no/place"});
    EXPECT_EQ(ended.code, 1);
    expect_problem(ended.err, ErrorCode::kFileAccess, {"/proc/no"});
  }
}

TEST_F(Report, MakesATraceOfATypicalStepOfEachRun) {
  if (std::string(LOCKSTEP_TEST_PYTHON).empty()) {
    GTEST_SKIP() << "the build knows no Python";
  }
  const Ended ended =
      run_lockstep({"compare", "--runs", path("ddp") + "," + path("dp"),
                    "--trace", path("traces")});
  ASSERT_EQ(ended.code, 0) << ended.err;
  EXPECT_TRUE(std::filesystem::exists(path("traces/dp.json")));
  const std::string found =
      run_python(content_of(LOCKSTEP_SOURCE_DIR "/tests/train/check_trace.py"),
                 path("traces/ddp.json"));
  EXPECT_PRED2(contains, found, "rank 0: steps ");
  EXPECT_PRED2(contains, found, "rank 1: steps ");
  EXPECT_PRED2(contains, found, "backward x1");
}

TEST_F(Report, RecordsWhatItShows) {
  const json run = run_json("ddp");
  EXPECT_EQ(run["step_time_percentiles_s"].size(), 101u);
  EXPECT_EQ(run["step_time_percentiles_s"][50], run["step_time_s"]["median"]);
  EXPECT_EQ(run["step_time_percentiles_s"][0], run["step_time_s"]["min"]);
  EXPECT_EQ(run["step_times"]["steps"].size(), 12u);
  ASSERT_EQ(run["time_line"].size(), 2u);
  EXPECT_EQ(run["time_line"][1]["devices"], "cpu:1");
  EXPECT_EQ(run["topology"]["devices"].size(), 2u);
  EXPECT_GT(run["environment"]["cores"], 0);
  EXPECT_GT(run["started_at"], 1.6e9);
}

TEST_F(Report, IsOfRunsThatTheSchemaDescribes) {
  std::vector<std::string> words{
      kSystemPython, LOCKSTEP_SOURCE_DIR "/tests/cli/check_run_json.py",
      LOCKSTEP_SOURCE_DIR "/docs/run.schema.json"};
  write_text(path("text.txt"), std::string(4000, 'x') + " to be or not");
  const std::string text = path("text_run");
  const Ended trained =
      run_lockstep({"train", "--model", "gpt-nano", "--data-file",
                    path("text.txt"), "--context", "16", "--max-steps", "3",
                    "--batch-size", "8", "--quiet", "--out-dir", text});
  ASSERT_EQ(trained.code, 0) << trained.err;
  for (const auto& run :
       {path("single"), path("dp"), path("ddp"), std::string(text)}) {
    words.push_back(run + "/run.json");
  }
  Command command;
  command.arguments = words;
  command.deadline_s = 60;
  auto result = run_command(command);
  if (result.exit_code == 77) GTEST_SKIP() << result.out;
  EXPECT_TRUE(result.ok()) << result.out << result.err;
  // The check can fail, for example for a key without a description.
  json more = run_json("single");
  more["devices"][0]["colour"] = "blue";
  write_json(path("more.json"), more);
  command.arguments.resize(3);
  command.arguments.push_back(path("more.json"));
  result = run_command(command);
  EXPECT_EQ(result.exit_code, 1) << result.out;
  EXPECT_PRED2(contains, result.out, "colour");
}

}  // namespace
}  // namespace lockstep::report_test
