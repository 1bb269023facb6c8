// Language models on the command line: train, eval and generate.
// Tier: nightly, by case. Language models.
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/base/expect_problem.h"
#include "tests/base/temporary_folder.h"
#include "tests/cli/program.h"

namespace lockstep::text_test {
namespace {

using Words = std::vector<std::string>;

class TextCommands : public testing::Test {
 protected:
  void SetUp() override {
    std::string text;
    for (int i = 0; i < 300; ++i) text += "to be or not to be é\n";
    write_text(path("text.txt"), text);
  }
  std::string path(const std::string& name) const { return folder_.path(name); }

  Ended train(const Words& more) const {
    Words words{
        "train",     "--model", "gpt-nano",    "--data-file", path("text.txt"),
        "--context", "16",      "--max-steps", "20",          "--batch-size",
        "8",         "--lr",    "0.01"};
    words.insert(words.end(), more.begin(), more.end());
    return run_lockstep(words);
  }

  const TemporaryFolder folder_;
};

TEST_F(TextCommands, TrainEvaluateAndGenerate) {
  const std::string run = path("run");
  const auto trained = train({"--out-dir", run});
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_PRED2(contains, trained.out, "windows");

  const auto evaluated = run_lockstep({"eval", "--checkpoint", run, "--json"});
  ASSERT_EQ(evaluated.code, 0) << evaluated.err;
  const auto json = nlohmann::json::parse(evaluated.out);
  EXPECT_NEAR(json["test"]["perplexity"].get<double>(),
              std::exp(json["test"]["loss"].get<double>()), 1e-9);
  EXPECT_EQ(json["test"]["tokens"], json["test"]["samples"].get<int>() * 16);

  const Words generate{"generate", "--checkpoint", run,   "--prompt",
                       "to be",    "--max-tokens", "40",  "--top-k",
                       "3",        "--top-p",      "0.9", "--temperature",
                       "0.7",      "--seed",       "5"};
  const auto first = run_lockstep(generate);
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_TRUE(first.out.starts_with("to be")) << first.out;
  EXPECT_EQ(run_lockstep(generate).out, first.out);
  Words other = generate;
  other.back() = "6";
  EXPECT_NE(run_lockstep(other).out, first.out);
}

TEST_F(TextCommands, ExportWhatTrainTakes) {
  const std::string run = path("run");
  ASSERT_EQ(train({"--out-dir", run, "--quiet"}).code, 0);
  const Words words{"export", "--checkpoint", run, "--out-dir", path("hf")};
  const auto exported = run_lockstep(words);
  ASSERT_EQ(exported.code, 0) << exported.err;
  const auto config = nlohmann::json::parse(content_of(path("hf/config.json")));
  EXPECT_EQ(config["model_type"], "gpt2");
  const auto loss_of = [&](const Words& more) {
    Words all{"--no-eval", "--quiet", "--report", path("one.json")};
    all.insert(all.end(), more.begin(), more.end());
    const auto ended = train(all);
    EXPECT_EQ(ended.code, 0) << ended.err;
    const auto report = nlohmann::json::parse(content_of(path("one.json")));
    return report["losses"][0].get<double>();
  };
  // Starts from the same weights, bit for bit.
  const double loss = loss_of({"--init-from", run});
  EXPECT_EQ(loss_of({"--init-from", path("hf")}), loss);
  EXPECT_LT(loss, loss_of({}));
  const auto tokenizer = path("hf/lockstep_tokenizer.json");
  EXPECT_EQ(loss_of({"--init-from", path("hf"), "--tokenizer", tokenizer}),
            loss);

  const auto again = run_lockstep(words);
  EXPECT_EQ(again.code, 1);
  expect_problem(again.err, ErrorCode::kCheckpointNotSaved, {"not empty"});
  EXPECT_EQ(run_lockstep({"export", "--checkpoint", run}).code, 2);
}

TEST_F(TextCommands, TrainOnTheTokensThatTokenizeWrote) {
  ASSERT_EQ(run_lockstep({"tokenize", "--input", path("text.txt"), "--out-dir",
                          path("tokens"), "--tokenizer", "chars",
                          "--val-fraction", "0.1"})
                .code,
            0);
  const auto text_run = train({"--quiet", "--report", path("text.json")});
  ASSERT_EQ(text_run.code, 0) << text_run.err;
  const auto tokens = run_lockstep(
      {"train", "--model", "gpt-nano", "--data-file", path("tokens"),
       "--context", "16", "--max-steps", "20", "--batch-size", "8", "--lr",
       "0.01", "--quiet", "--report", path("tokens.json")});
  ASSERT_EQ(tokens.code, 0) << tokens.err;
  const auto digest = [&](const std::string& name) {
    return nlohmann::json::parse(content_of(path(name)))["parameter_sha256"];
  };
  EXPECT_EQ(digest("tokens.json"), digest("text.json"));
}

TEST_F(TextCommands, RefuseOptionsThatAreNotForThem) {
  const std::vector<std::pair<Words, std::string>> cases{
      {{"--data", "cifar10"}, "--data cifar10 is for images"},
      {{"--data-dir", "x"}, "--data-dir"},
      {{"--no-augment"}, "--no-augment"},
      {{"--momentum", "0.9"}, "--momentum"},
      {{"--dropout", "1"}, "--dropout"},
      {{"--final-lr", "0.1", "--schedule", "constant"}, "--final-lr"}};
  for (const auto& [words, message] : cases) {
    const auto ended = train(words);
    EXPECT_EQ(ended.code, 2) << ended.err;
    EXPECT_PRED2(contains, ended.err, message);
  }
  const std::vector<std::pair<Words, std::string>> image_errors{
      {{"--data", "text"}, "--data text"},
      {{"--data-file", "x"}, "--data-file"},
      {{"--context", "8"}, "--context"},
      {{"--recompute"}, "--recompute"}};
  for (const auto& [words, message] : image_errors) {
    Words all{"train", "--model", "mlp"};
    all.insert(all.end(), words.begin(), words.end());
    const auto ended = run_lockstep(all);
    EXPECT_EQ(ended.code, 2) << ended.err;
    EXPECT_PRED2(contains, ended.err, message);
  }
  const auto no_file = run_lockstep({"train", "--model", "gpt-char"});
  EXPECT_EQ(no_file.code, 2);
  EXPECT_PRED2(contains, no_file.err, "--data-file");
}

TEST_F(TextCommands, GenerateSaysWhatItCanNotUse) {
  EXPECT_PRED2(contains, run_lockstep({"generate"}).err, "--checkpoint");
  const std::string images = path("images");
  ASSERT_EQ(run_lockstep({"train", "--model", "mlp", "--max-steps", "1",
                          "--quiet", "--out-dir", images})
                .code,
            0);
  const auto wrong = run_lockstep({"generate", "--checkpoint", images});
  EXPECT_EQ(wrong.code, 1);
  expect_problem(wrong.err, ErrorCode::kUnknownName, {"mlp"});
  const std::string run = path("run");
  ASSERT_EQ(train({"--out-dir", run, "--quiet"}).code, 0);
  const auto unknown =
      run_lockstep({"generate", "--checkpoint", run, "--prompt", "XYZ"});
  EXPECT_EQ(unknown.code, 1);
  expect_problem(unknown.err, ErrorCode::kMalformedData, {"U+0058"});
  const auto empty =
      run_lockstep({"generate", "--checkpoint", run, "--prompt", ""});
  EXPECT_EQ(empty.code, 2);
  expect_problem(empty.err, ErrorCode::kBadOption, {"prompt"});
  const auto top_p =
      run_lockstep({"generate", "--checkpoint", run, "--top-p", "1.5"});
  EXPECT_NE(top_p.code, 0);
}

}  // namespace
}  // namespace lockstep::text_test
