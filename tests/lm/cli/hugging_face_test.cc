// `lockstep train --init-from` with a Hugging Face folder. The data in the
// folder override defaults.
// Tier: nightly, by case. Language models.
#include "lockstep/lm/models/hugging_face.h"

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/cores.h"
#include "lockstep/checkpoint/safetensors.h"
#include "tests/base/expect_problem.h"
#include "tests/base/temporary_folder.h"
#include "tests/cli/processes.h"
#include "tests/cli/program.h"

namespace lockstep::hugging_face_test {
namespace {

using nlohmann::json;
using Words = std::vector<std::string>;

constexpr int64_t kVocabulary = 60;
constexpr const char* kHead = "lm_head.weight";

/// A folder with sizes that no named model has.
class HuggingFaceRuns : public testing::Test {
 protected:
  void SetUp() override {
    std::string text;
    for (int i = 0; i < 300; ++i) text += "to be or not to be\n";
    write_text(path("text.txt"), text);
    write_folder("gpt-nano");
  }

  void write_folder(const std::string& name) {
    std::filesystem::remove_all(path("hf"));
    auto spec = models::language_spec(name);
    spec.vocabulary = kVocabulary;
    spec.context = 12;
    spec.layers = 2;
    spec.heads = 2;
    spec.key_value_heads = 2;
    spec.width = 24;
    torch::manual_seed(11);
    save_hugging_face(path("hf"), *models::make_language_model(spec));
  }

  /// Adds a head that differs from the table. config.json still says "tied".
  void give_own_head() const {
    const std::string file = path("hf/model.safetensors");
    auto content = read_safetensors(file);
    torch::manual_seed(12);
    content.tensors.emplace_back(kHead, torch::randn({kVocabulary, 24}) * 0.1);
    write_safetensors(file, content);
  }

  std::string path(const std::string& name) const { return folder_.path(name); }

  Words train_words(const Words& more) const {
    Words words{"train",
                "--data-file",
                path("text.txt"),
                "--max-steps",
                "6",
                "--lr",
                "0.01",
                "--batch-size",
                "8",
                "--shards",
                "2",
                "--intra-op-threads",
                "1"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  Ended train(Words more) const {
    more.insert(more.end(), {"--init-from", path("hf")});
    return run_lockstep(train_words(more));
  }
  Ended train_well(const Words& more) const {
    const Ended ended = train(more);
    EXPECT_EQ(ended.code, 0) << ended.err;
    return ended;
  }
  json config() const {
    return json::parse(content_of(path("hf/config.json")));
  }
  json manifest_of(const std::string& checkpoint) const {
    return json::parse(content_of(path(checkpoint + "/manifest.json")));
  }

 private:
  const TemporaryFolder folder_;
};

TEST_F(HuggingFaceRuns, TakeTheSizesOfTheFolder) {
  for (const std::string name : {"gpt-nano", "llama-char"}) {
    write_folder(name);
    const std::string run = "run-" + name;
    const auto ended = train_well({"--out-dir", path(run)});
    EXPECT_PRED2(contains, ended.err, "config.json");
    const json model = manifest_of(run + "/step-00000006")["model"];
    EXPECT_EQ(model["layers"], "2");
    EXPECT_EQ(model["width"], "24");
    EXPECT_EQ(model["context"], "12");
    EXPECT_EQ(model["vocabulary"], std::to_string(kVocabulary));
    // Options that repeat what the folder says give the same bits.
    const auto told = train_well({"--model", name, "--context", "12"});
    EXPECT_EQ(digest_in(told.out), digest_in(ended.out));
  }
}

TEST_F(HuggingFaceRuns, AreGeneratedFromEvaluatedAndPlanned) {
  const std::string run = path("run");
  ASSERT_EQ(
      run_lockstep(train_words({"--model", "gpt-nano", "--out-dir", run})).code,
      0);
  const std::string folder = path("exported");
  ASSERT_EQ(
      run_lockstep({"export", "--checkpoint", run, "--out-dir", folder}).code,
      0);
  // The result is the same as from the checkpoint itself.
  const auto ended = [](const Words& words) {
    const Ended result = run_lockstep(words);
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  };
  const auto generated = [&](const std::string& from) {
    return ended({"generate", "--checkpoint", from, "--prompt", "to be",
                  "--max-tokens", "20"});
  };
  EXPECT_EQ(generated(folder), generated(run));
  const auto loss = [&](const std::string& from) {
    return json::parse(ended({"eval", "--checkpoint", from, "--data-file",
                              path("text.txt"), "--json"}))["test"]["loss"];
  };
  EXPECT_EQ(loss(folder), loss(run));
  const auto parameters = [&](const std::string& from) {
    return json::parse(ended({"plan", "--init-from", from, "--batch-size", "2",
                              "--json"}))["parameters"];
  };
  EXPECT_EQ(parameters(folder), parameters(run));

  const Ended unnamed = run_lockstep({"eval", "--checkpoint", folder});
  EXPECT_PRED2(contains, unnamed.err, "--data-file");
  std::filesystem::remove(folder + "/lockstep_tokenizer.json");
  std::filesystem::remove(folder + "/tokenizer.json");
  const Ended mute = run_lockstep({"generate", "--checkpoint", folder});
  EXPECT_EQ(mute.code, 1);
  expect_problem(mute.err, ErrorCode::kCheckpointMissing,
                 {folder, "tokenizer.json"});
}

TEST_F(HuggingFaceRuns, RefuseWhatContradictsTheFolder) {
  const std::vector<std::pair<Words, std::string>> cases{
      {{"--context", "16"}, "--context 16"},
      {{"--model", "llama-char"}, "--model llama-char"},
      {{"--model", "cnn"}, "--model cnn"}};
  for (const auto& [words, named] : cases) {
    const auto ended = train(words);
    EXPECT_EQ(ended.code, 2) << ended.err;
    EXPECT_PRED2(contains, ended.err, named);
    EXPECT_PRED2(contains, ended.err, path("hf/config.json"));
  }
}

TEST_F(HuggingFaceRuns, RefuseAConfigThatCanNotBe) {
  for (const auto& [key, value] : {std::pair<std::string, json>{"n_layer", "2"},
                                   {"n_embd", 1e30},
                                   {"vocab_size", -1},
                                   {"tie_word_embeddings", "no"},
                                   {"n_layer", 1 << 24}}) {
    json changed = config();
    const json before = changed;
    changed[key] = value;
    write_text(path("hf/config.json"), changed.dump());
    const auto ended = train({});
    EXPECT_EQ(ended.code, 1) << key << value << ended.err;
    EXPECT_PRED2(contains, ended.err, "config.json") << key;
    write_text(path("hf/config.json"), before.dump());
  }
}

TEST_F(HuggingFaceRuns, TrainAHeadThatDiffersFromTheTable) {
  const auto tied = train_well({});
  give_own_head();
  ASSERT_EQ(config()["tie_word_embeddings"], true);
  const Words saved{"--out-dir", path("run"), "--checkpoint-every", "3"};
  const auto ended = train_well(saved);
  EXPECT_PRED2(contains, ended.err, "head of its own");
  EXPECT_NE(digest_in(ended.out), digest_in(tied.out));
  if (allowed_cores().size() >= 2) {
    for (const std::string strategy : {"dp", "ddp"}) {
      const auto other =
          train_well({"--strategy", strategy, "--devices", "2xcpu"});
      EXPECT_EQ(digest_in(other.out), digest_in(ended.out)) << strategy;
    }
  }
  // It continues without the folder, and without the name of the model.
  const auto resumed = run_lockstep(train_words(
      {"--resume", path("run/step-00000003"), "--out-dir", path("other")}));
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(digest_in(resumed.out), digest_in(ended.out));
  const auto longer = run_lockstep(
      train_words({"--resume", path("run/step-00000003"), "--context", "16"}));
  EXPECT_EQ(longer.code, 2) << longer.err;
  EXPECT_PRED2(contains, longer.err, "--context 16");

  EXPECT_EQ(run_lockstep({"eval", "--checkpoint", path("run")}).code, 0);
  const auto generated =
      run_lockstep({"generate", "--checkpoint", path("run"), "--prompt", "to",
                    "--max-tokens", "30", "--temperature", "5"});
  EXPECT_EQ(generated.code, 0) << generated.err;

  ASSERT_EQ(run_lockstep({"export", "--checkpoint", path("run"), "--out-dir",
                          path("out")})
                .code,
            0);
  EXPECT_EQ(
      json::parse(content_of(path("out/config.json")))["tie_word_embeddings"],
      false);
  const auto model = load_hugging_face(path("out"));
  EXPECT_FALSE(model->spec().is_tied);
  EXPECT_FALSE(
      model->head().equal(model->named_parameters()["transformer.wte.weight"]));
}

TEST_F(HuggingFaceRuns, TakeTheTokenizerOfTheFolder) {
  // Ids 0 and 1 stand for characters that the text does not have.
  write_text(path("all.txt"), "#$\nbenort ");
  ASSERT_EQ(run_lockstep({"tokenize", "--input", path("all.txt"), "--out-dir",
                          path("tokens"), "--tokenizer", "chars"})
                .code,
            0);
  std::filesystem::copy(path("tokens/tokenizer.json"),
                        path("hf/lockstep_tokenizer.json"));
  const auto with = train_well({});
  const auto named =
      train_well({"--tokenizer", path("hf/lockstep_tokenizer.json")});
  EXPECT_EQ(digest_in(with.out), digest_in(named.out));
  const auto chars = train_well({"--tokenizer", "chars"});
  EXPECT_NE(digest_in(with.out), digest_in(chars.out));

  // A tokenizer file that Lockstep can't read.
  std::filesystem::remove(path("hf/lockstep_tokenizer.json"));
  write_text(path("hf/tokenizer.json"), R"({"model": {"type": "Unigram"}})");
  const auto unread = train_well({});
  EXPECT_PRED2(contains, unread.err, "is not used");
  EXPECT_EQ(digest_in(unread.out), digest_in(chars.out));

  // 256 tokens do not fit into 60 rows.
  const auto bytes = train({"--tokenizer", "bytes"});
  EXPECT_EQ(bytes.code, 2);
  expect_problem(bytes.err, ErrorCode::kBadOption,
                 {"'bytes'", "config.json", "256"});
}

}  // namespace
}  // namespace lockstep::hugging_face_test
