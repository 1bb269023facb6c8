// Tier: nightly. Language models.
#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/exit_code.h"
#include "lockstep/lm/text/tokens.h"
#include "tests/base/temporary_folder.h"
#include "tests/cli/program.h"
#include "tests/lm/text/tiny_tokenizer.h"

namespace lockstep::tokenize_test {
namespace {

using nlohmann::json;

class Tokenize : public testing::Test {
 protected:
  Tokenize() {
    write_text(folder_.path("text"), "abc bc\nab");
    write_text(folder_.path("tokenizer.json"), tiny_tokenizer().dump());
  }

  Ended tokenize(std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments{"tokenize", "--input",
                                       folder_.path("text"), "--out-dir",
                                       folder_.path("out")};
    if (std::find(more.begin(), more.end(), "--tokenizer") == more.end()) {
      more.insert(more.end(), {"--tokenizer", folder_.path("tokenizer.json")});
    }
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_lockstep(arguments);
  }

  std::vector<int64_t> written() const {
    const data::TokenFolder source(folder_.path("out"));
    std::vector<int64_t> tokens(static_cast<size_t>(source.size()));
    source.read(0, tokens);
    return tokens;
  }

  const TemporaryFolder folder_;
};

TEST_F(Tokenize, WritesTokensAndSaysSoAsJson) {
  const Ended ended = tokenize({"--json", "--val-fraction", "0.4"});
  ASSERT_EQ(ended.code, 0) << ended.err;
  const json report = json::parse(ended.out);
  EXPECT_EQ(report["train_tokens"], 3);
  EXPECT_EQ(report["val_tokens"], 2);
  EXPECT_EQ(report["vocabulary"], 260);
  EXPECT_EQ(report["train_files"], json::parse(R"(["train_000000.bin"])"));
  // Computed by hand, as in bpe_tokenizer_test: abc, a blank, bc, a new line,
  // ab.
  EXPECT_EQ(written(), (std::vector<int64_t>{257, ' ', 258, '\n', 256}));
}

TEST_F(Tokenize, SaysWhatItWrote) {
  const Ended ended = tokenize();
  ASSERT_EQ(ended.code, 0) << ended.err;
  EXPECT_PRED2(contains, ended.out, "train: 5 tokens in 1 file");
}

TEST_F(Tokenize, OverwritesNothing) {
  ASSERT_EQ(tokenize().code, 0);
  const Ended again = tokenize();
  EXPECT_EQ(again.code, kExitFailed);
  EXPECT_PRED2(contains, again.err, folder_.path("out"));
}

TEST_F(Tokenize, NeedsItsOptions) {
  const Ended ended = run_lockstep({"tokenize"});
  EXPECT_EQ(ended.code, kExitBadUsage);
  EXPECT_EQ(tokenize({"--val-fraction", "1"}).code, kExitBadUsage);
  EXPECT_EQ(tokenize({"--shard-tokens", "0"}).code, kExitBadUsage);
}

}  // namespace
}  // namespace lockstep::tokenize_test
