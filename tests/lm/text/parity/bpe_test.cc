// Tier: nightly. Language models.
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/lm/text/tokenizer.h"
#include "tests/base/temporary_folder.h"
#include "tests/checkpoint/python.h"

namespace lockstep {
namespace {

using nlohmann::json;

// The output of bpe.py: a folder for each kind of tokenizer. Made once, because
// it takes seconds.
class BpeAndTokenizers : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (!python_has("tokenizers")) return;
    folder_ = new TemporaryFolder();
    run_python_file(kScript, {folder_->path(), "1", "3000"});
  }
  static void TearDownTestSuite() { delete folder_; }
  void SetUp() override {
    if (folder_ == nullptr) {
      GTEST_SKIP() << "the Python package tokenizers is not there";
    }
  }

  // Ids and text are exactly equal, because nothing is rounded.
  static void expect_same(const std::string& kind) {
    const auto tokenizer = data::open_tokenizer(folder_->path(kind));
    const json cases =
        json::parse(content_of(folder_->path(kind + "/cases.json")));
    ASSERT_GT(cases.size(), 1000u);
    for (const json& one : cases) {
      const auto text = one["text"].get<std::string>();
      const auto ids = one["ids"].get<std::vector<uint32_t>>();
      ASSERT_EQ(tokenizer->encode(text), ids) << one["text"];
      ASSERT_EQ(tokenizer->decode(ids), one["decoded"].get<std::string>());
    }
  }

  static constexpr const char* kScript =
      LOCKSTEP_SOURCE_DIR "/tests/lm/text/parity/bpe.py";
  static inline TemporaryFolder* folder_ = nullptr;
};

// One test for all, because each test is a process that trains the tokenizers
// again.
TEST_F(BpeAndTokenizers, GiveTheSameIdsAndText) {
  for (const char* kind :
       {"gpt2", "files", "llama3", "gpt4", "several", "prefix"}) {
    SCOPED_TRACE(kind);
    expect_same(kind);
  }
}

TEST_F(BpeAndTokenizers, ReadWhatTheOtherWrites) {
  for (const std::string kind : {"gpt2", "llama3", "prefix"}) {
    const auto tokenizer = data::open_tokenizer(folder_->path(kind));
    write_text(folder_->path("ours.json"), tokenizer->to_json());
    EXPECT_EQ(run_python_file(kScript, {"same", folder_->path("ours.json"),
                                        folder_->path(kind + "/tokenizer.json"),
                                        folder_->path(kind + "/cases.json")}),
              "same\n");
  }
}

}  // namespace
}  // namespace lockstep
