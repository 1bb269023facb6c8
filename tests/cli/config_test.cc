// Tier: full, by case. Each case starts the program.
#include <fstream>
#include <sys/stat.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/cli/start/checks.h"
#include "lockstep/cli/start/config_file.h"
#include "tests/base/error_code_of.h"
#include "tests/base/expect_problem.h"
#include "tests/base/temporary_folder.h"
#include "tests/cli/program.h"

namespace lockstep::cli {
namespace {

using Words = std::vector<std::string>;

/// A command with one option of each kind.
class Command {
 public:
  Command() {
    app_.name("train");
    app_.add_option("--model", model_);
    app_.add_option("--batch-size", batch_size_);
    app_.add_option("--milestones", milestones_);
    app_.add_option("--out-dir", out_dir_);
    app_.add_flag("--quiet", quiet_);
    add_config_option(app_);
  }
  Words words(const std::string& text, const Words& arguments = {}) const {
    return words_of_config(app_, "c.json", text, arguments);
  }
  std::string refusal(const std::string& text) const {
    try {
      words(text);
    } catch (const BadUsage& error) {
      return error.what();
    }
    return "";
  }
  std::string config_after(Words arguments) {
    std::reverse(arguments.begin(), arguments.end());
    app_.parse(arguments);
    return config_of(app_);
  }

 private:
  CLI::App app_;
  std::string model_, milestones_, out_dir_;
  int batch_size_ = 0;
  bool quiet_ = false;
};

TEST(ConfigFile, StandsForWords) {
  EXPECT_EQ(
      Command().words(R"({"batch-size": 12, "model": "mlp",
                                "milestones": [4, 9], "quiet": true})"),
      (Words{"--batch-size=12", "--model=mlp", "--milestones=4,9", "--quiet"}));
  EXPECT_EQ(Command().words(R"({"quiet": false})"), Words());
}

TEST(ConfigFile, GivesWayToTheCommandLine) {
  EXPECT_EQ(Command().words(R"({"batch-size": 12, "model": "mlp"})",
                            {"--batch-size", "3"}),
            Words{"--model=mlp"});
  EXPECT_EQ(Command().words(R"({"batch-size": 12})", {"--batch-size=3"}),
            Words());
}

TEST(ConfigFile, RefusesWhatIsNoOption) {
  EXPECT_EQ(Command().refusal(R"({"batchsize": 12})"),
            "[usage] c.json: unknown option \"batchsize\"; did you mean "
            "'batch-size'? See `lockstep help train`");
  for (const char* text :
       {R"({"config": "d.json"})", R"({"help": true})", R"({"quiet": 1})",
        R"({"model": null})", R"({"model": {"a": 1}})", R"({"model": []})",
        R"({"model": true})", R"({"model": "a\u001b[31m"})",
        R"({"model": "a\u009bb"})", R"({"milestones": ["4\n"]})",
        R"({"milestones": [[1]]})", R"([1])", R"(7)", R"({"lockstep": 1})"}) {
    EXPECT_NE(Command().refusal(text), "") << text;
  }
  for (const char* text : {"", "{", R"({"model": "a", "model": "b"})",
                           R"({"model": "a"} x)", R"({"model": [[[[1]]]]})"}) {
    EXPECT_EQ(error_code_of([&] { Command().words(text); }),
              ErrorCode::kMalformedData)
        << text;
  }
}

TEST(ConfigFile, IsWrittenWithWhatWasGiven) {
  const auto written = nlohmann::json::parse(Command().config_after(
      {"--model", "mlp", "--batch-size", "12", "--quiet", "--out-dir", "r"}));
  EXPECT_EQ(written.at("model"), "mlp");
  EXPECT_EQ(written.at("batch-size"), 12);
  EXPECT_EQ(written.at("quiet"), true);
  EXPECT_TRUE(written.contains("lockstep"));
  EXPECT_EQ(written.size(), 4u);
}

// Returns the digest that a run prints.
std::string digest_of(const Ended& result) {
  const size_t at = result.out.find("parameter_sha256");
  return at == std::string::npos ? "none: " + result.err
                                 : result.out.substr(at);
}

TEST(Config, RunsTheSameAgain) {
  const TemporaryFolder folder;
  std::ofstream(folder.path("mine.json"))
      << R"({"model": "mlp", "batch-size": 20,
             "max-steps": 30, "lr": 0.02, "no-eval": true})";
  const auto first =
      run_lockstep({"train", "--config", folder.path("mine.json"),
                    "--max-steps", "3", "--out-dir", folder.path("first")});
  EXPECT_EQ(first.code, 0) << first.err;
  const auto again =
      run_lockstep({"train", "--config", folder.path("first/config.json")});
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(digest_of(again).substr(0, 90), digest_of(first).substr(0, 90));
  EXPECT_PRED2(contains, again.out, "3/3");
  const auto other = run_lockstep(
      {"train", "--config", folder.path("first/config.json"), "--seed", "5"});
  EXPECT_NE(digest_of(other), digest_of(again));
}

TEST(Config, IsAPlainFileOfFewBytes) {
  const TemporaryFolder folder;
  std::ofstream(folder.path("large.json")) << std::string(2 << 20, ' ');
  ASSERT_EQ(::mkfifo(folder.path("pipe").c_str(), 0600), 0);
  for (const auto& path : {folder.path("none.json"), std::string("/dev/zero"),
                           folder.path("pipe"), folder.path("")}) {
    const auto refused = run_lockstep({"train", "--config", path});
    expect_problem(refused.err, ErrorCode::kFileAccess, {"--config"});
    EXPECT_EQ(refused.out, "") << path;
  }
  const auto large =
      run_lockstep({"train", "--config", folder.path("large.json")});
  expect_problem(large.err, ErrorCode::kFileTooLarge, {"large.json"});
}

// config.json describes the last run that was started.
TEST(Config, IsWrittenWhenNothingSpeaksAgainstTheRun) {
  const TemporaryFolder folder;
  const std::string run = folder.path("run");
  const Words command{"train",
                      "--model",
                      "mlp",
                      "--batch-size",
                      "20",
                      "--lr",
                      "0.02",
                      "--max-steps",
                      "2",
                      "--trace",
                      folder.path("t.json"),
                      "--trace-steps",
                      "1",
                      "--no-eval",
                      "--out-dir",
                      run};
  EXPECT_EQ(run_lockstep(command).code, 0);
  const std::string written = content_of(run + "/config.json");
  EXPECT_FALSE(contains(written, "trace"));
  auto other = command;
  other[4] = "10";
  other.insert(other.end(), {"--resume", "auto"});
  EXPECT_NE(run_lockstep(other).code, 0);
  EXPECT_EQ(content_of(run + "/config.json"), written);
  const auto again =
      run_lockstep({"train", "--config", run + "/config.json",
                    "--no-eval=false", "--out-dir", folder.path("again")});
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(nlohmann::json::parse(content_of(folder.path("again/config.json")))
                .at("no-eval"),
            false);
}

}  // namespace
}  // namespace lockstep::cli
