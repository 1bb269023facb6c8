// torch.distributed.checkpoint reads what Lockstep writes, and the reverse.
// Tier: nightly. It starts Python three times.
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/base/expect_problem.h"
#include "tests/base/temporary_folder.h"
#include "tests/checkpoint/python.h"
#include "tests/cli/program.h"

namespace lockstep::distributed_checkpoint_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Words = std::vector<std::string>;

class DistributedCheckpoints : public testing::Test {
 protected:
  void SetUp() override {
    if (!python_has("safetensors")) GTEST_SKIP() << "needs safetensors";
    std::string text;
    for (int i = 0; i < 60; ++i) text += "to be or not to be\n";
    write_text(path("text.txt"), text);
    run(train_words({"--max-steps", "2", "--out-dir", path("run")}));
    const Words words{"export", "--checkpoint", path("run"), "--out-dir"};
    run(with(words, {path("exported")}));
    run(with(words, {path("files"), "--max-shard-size", "100KB"}));
    ASSERT_TRUE(fs::exists(path("files/model.safetensors.index.json")));
    fs::copy(path("run/step-00000002"), path("step"));
    run_python_file(LOCKSTEP_SOURCE_DIR
                    "/tests/lm/cli/parity/distributed_checkpoint.py",
                    {path("")});
  }

  std::string path(const std::string& name) const { return folder_.path(name); }
  static Words with(Words words, const Words& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  static std::string run(const Words& words) {
    const Ended ended = run_lockstep(words);
    EXPECT_EQ(ended.code, 0) << ended.err;
    return ended.out;
  }
  Words train_words(const Words& more) const {
    return with(
        {"train", "--model", "gpt-nano", "--context", "16", "--data-file",
         path("text.txt"), "--batch-size", "2", "--no-eval", "--quiet"},
        more);
  }
  Words train_from(const std::string& name) const {
    return train_words({"--max-steps", "1", "--init-from", path(name),
                        "--report", path("run.json")});
  }
  /// Returns the digest after one step from the weights in a folder.
  std::string digest_from(const std::string& name) const {
    run(train_from(name));
    return json::parse(content_of(path("run.json")))["parameter_sha256"];
  }
  /// Runs the Python in the error of a run that starts from this folder.
  void convert(const std::string& name) const {
    const Ended refused = run_lockstep(train_from(name));
    EXPECT_EQ(refused.code, 1);
    expect_problem(refused.err, ErrorCode::kMalformedData, {path(name)});
    const std::string begin = "in Python: ";
    const size_t from = refused.err.find(begin) + begin.size();
    const size_t to = refused.err.rfind(" [malformed-data]");
    ASSERT_LT(from, to) << refused.err;
    run_python(refused.err.substr(from, to - from));
  }

 private:
  const TemporaryFolder folder_;
};

TEST_F(DistributedCheckpoints, GoBothWays) {
  const std::string expected = digest_from("changed");
  EXPECT_NE(digest_from("exported"), expected);
  EXPECT_EQ(digest_from("consolidated"), expected);
  for (const std::string name : {"parts", "plain"}) {
    convert(name);
    EXPECT_EQ(digest_from(name), expected) << name;
  }

  // With the files that say what model it is, other commands also take it.
  const auto report_on = [&](const std::string& name) {
    for (const std::string file : {"config.json", "lockstep_tokenizer.json"}) {
      fs::copy(path("exported/" + file), path(name + "/" + file));
    }
    return json::parse(run({"eval", "--checkpoint", path(name), "--data-file",
                            path("text.txt"), "--json"}));
  };
  const Ended unnamed =
      run_lockstep({"eval", "--checkpoint", path("consolidated")});
  expect_problem(unnamed.err, ErrorCode::kCheckpointMissing, {"config.json"});
  const json changed = report_on("changed");
  const json consolidated = report_on("consolidated");
  EXPECT_EQ(consolidated["parameter_sha256"], changed["parameter_sha256"]);
  EXPECT_EQ(consolidated["test"]["loss"], changed["test"]["loss"]);
}

}  // namespace
}  // namespace lockstep::distributed_checkpoint_test
