#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/lm/text/token_shards.h"
#include "lockstep/lm/text/tokenizer.h"
#include "lockstep/lm/text/tokens.h"
#include "tests/base/is_error.h"
#include "tests/base/temporary_folder.h"
#include "tests/lm/text/tiny_tokenizer.h"

namespace lockstep::tokenize_files_test {
namespace {

using data::TokenFolder;
using data::TokenFormat;
using data::TokenShardWriter;
using Ids = std::vector<int64_t>;

Ids tokens_in(const std::string& folder, const std::string& prefix) {
  const TokenFolder source(folder, prefix);
  Ids tokens(static_cast<size_t>(source.size()));
  source.read(0, tokens);
  return tokens;
}

class TokenShards : public testing::Test {
 protected:
  void write(uint32_t count, int64_t shard_tokens) {
    std::vector<uint32_t> tokens(count);
    std::iota(tokens.begin(), tokens.end(), 0u);
    TokenShardWriter writer(folder_.path(), "train_", TokenFormat::kUint16,
                            shard_tokens);
    writer.add(std::span(tokens).first(count / 3));
    writer.add(std::span(tokens).subspan(count / 3));
    writer.commit();
    files_ = writer.paths().size();
  }

  const TemporaryFolder folder_;
  size_t files_ = 0;
};

TEST_F(TokenShards, AreFullButForTheLast) {
  for (const auto& [count, files] : {std::pair{10u, 4u}, {9u, 3u}, {1u, 1u}}) {
    write(count, 3);
    EXPECT_EQ(files_, files);
    const TokenFolder folder(folder_.path(), "train_");
    EXPECT_EQ(folder.files()[0]->size(), std::min(count, 3u));
    std::filesystem::remove(folder_.path("train_000003.bin"));
  }
}

TEST_F(TokenShards, GiveTheirLastTokensToOthers) {
  Ids all(10);
  std::iota(all.begin(), all.end(), 0);
  for (int64_t moved = 0; moved <= 10; ++moved) {
    write(10, 3);
    const auto parts =
        data::move_last_tokens(folder_.path(), "train_", "val_", moved, 4);
    EXPECT_EQ(parts.from.size(), static_cast<size_t>((10 - moved + 2) / 3));
    EXPECT_EQ(parts.to.size(), static_cast<size_t>((moved + 3) / 4));
    const auto cut = all.end() - moved;
    if (moved < 10) {
      EXPECT_EQ(tokens_in(folder_.path(), "train_"), Ids(all.begin(), cut));
    }
    if (moved > 0) {
      EXPECT_EQ(tokens_in(folder_.path(), "val_"), Ids(cut, all.end()));
    }
    for (const auto& path : parts.from) std::filesystem::remove(path);
    for (const auto& path : parts.to) std::filesystem::remove(path);
  }
}

TEST_F(TokenShards, HaveNoMoreToGive) {
  write(3, 3);
  const auto message = error_of<InvalidArgument>(
      [&] { data::move_last_tokens(folder_.path(), "train_", "val_", 4, 3); });
  EXPECT_TRUE(is_error(message, ErrorCode::kBadOption, {"4"}));
}

class TokenizeFiles : public testing::Test {
 protected:
  TokenizeFiles() {
    for (int i = 0; i < 7; ++i) {
      std::string text;
      for (int j = 0; j < 100 * i + 1; ++j) {
        text += "abc " + std::to_string(i * j) + "\n";
      }
      texts_.push_back(text);
      options_.inputs().push_back(folder_.path("in/" + std::to_string(i)));
      write_text(options_.inputs().back(), text);
    }
    options_.out_dir(folder_.path("out/tokens"));
  }

  // Returns each text encoded by one encode(), with the end-of-text token
  // between two texts.
  Ids expected() const {
    Ids ids;
    for (const auto& text : texts_) {
      if (!ids.empty()) ids.push_back(*tokenizer_->end_of_text());
      const auto part = tokenizer_->encode(text);
      ids.insert(ids.end(), part.begin(), part.end());
    }
    return ids;
  }

  const TemporaryFolder folder_;
  std::shared_ptr<const data::Tokenizer> tokenizer_ =
      data::parse_tokenizer(tiny_tokenizer().dump(), "tiny");
  std::vector<std::string> texts_;
  data::TokenizeOptions options_;
};

TEST_F(TokenizeFiles, WritesTheTokensOfEachWholeFile) {
  for (const int threads : {1, 3, 16}) {
    options_.threads(threads);
    const auto report = data::tokenize_files(*tokenizer_, options_);
    EXPECT_EQ(tokens_in(options_.out_dir(), ""), expected());
    EXPECT_EQ(report.train_files,
              (std::vector<std::string>{"train_000000.bin"}));
    EXPECT_EQ(report.val_tokens, 0);
    const auto written = data::open_tokenizer(options_.out_dir());
    EXPECT_EQ(written->to_json(), tokenizer_->to_json());
    std::filesystem::remove_all(options_.out_dir());
  }
}

TEST_F(TokenizeFiles, KeepsTheLastTokensForValidation) {
  options_.val_fraction(0.25);
  options_.shard_tokens(1000);
  const auto report = data::tokenize_files(*tokenizer_, options_);
  const Ids all = expected();
  EXPECT_EQ(report.val_tokens, static_cast<int64_t>(all.size() / 4));
  const auto cut = all.end() - report.val_tokens;
  EXPECT_EQ(tokens_in(options_.out_dir(), "train_"), Ids(all.begin(), cut));
  EXPECT_EQ(tokens_in(options_.out_dir(), "val_"), Ids(cut, all.end()));
  EXPECT_EQ(report.train_files.size(),
            static_cast<size_t>((report.train_tokens + 999) / 1000));
}

TEST_F(TokenizeFiles, TellsHowFarItIs) {
  std::vector<int64_t> done;
  options_.progress([&](int64_t bytes, int64_t total) {
    done.push_back(bytes);
    EXPECT_LE(bytes, total);
  });
  const auto report = data::tokenize_files(*tokenizer_, options_);
  EXPECT_EQ(done.size(), texts_.size());
  EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
  EXPECT_EQ(done.back(), report.bytes);
}

TEST_F(TokenizeFiles, OverwritesNothing) {
  write_text(options_.out_dir() + "/notes", "mine");
  const auto message =
      error_of<IoError>([&] { data::tokenize_files(*tokenizer_, options_); });
  EXPECT_TRUE(is_error(message, ErrorCode::kFileAccess, {options_.out_dir()}));
  EXPECT_EQ(content_of(options_.out_dir() + "/notes"), "mine");
}

TEST_F(TokenizeFiles, LeavesNothingBehindWhenATextHasNoTokens) {
  write_text(options_.inputs()[4], "ab\xff");
  const auto message =
      error_of<DataError>([&] { data::tokenize_files(*tokenizer_, options_); });
  EXPECT_TRUE(
      is_error(message, ErrorCode::kMalformedData, {options_.inputs()[4]}));
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path("out")));
}

TEST_F(TokenizeFiles, NamesAFileThatIsNotThere) {
  options_.inputs().push_back(folder_.path("in/missing"));
  const auto message =
      error_of<IoError>([&] { data::tokenize_files(*tokenizer_, options_); });
  EXPECT_TRUE(is_error(message, ErrorCode::kFileAccess, {"in/missing"}));
}

TEST_F(TokenizeFiles, RefusesEmptyTexts) {
  write_text(folder_.path("in/empty"), "");
  options_.inputs({folder_.path("in/empty")});
  const auto message =
      error_of<DataError>([&] { data::tokenize_files(*tokenizer_, options_); });
  EXPECT_TRUE(is_error(message, ErrorCode::kMalformedData, {"out/tokens"}));
}

TEST_F(TokenizeFiles, RefusesOptionsThatCantBe) {
  for (const double fraction : {-0.1, 1.0, std::nan("")}) {
    options_.val_fraction(fraction);
    EXPECT_THROW(data::tokenize_files(*tokenizer_, options_), InvalidArgument);
  }
}

TEST(CharacterTokenizerJson, HasTheCodePointsInTheirOrder) {
  const TemporaryFolder folder;
  write_text(folder.path("a"), "b\naé😀");
  write_text(folder.path("b"), "aÿ\xe2\x82\xac");
  const auto text =
      data::character_tokenizer_json({folder.path("a"), folder.path("b")});
  EXPECT_EQ(
      nlohmann::json::parse(text),
      (nlohmann::json{{"type", "characters"}, {"characters", "\nabéÿ€😀"}}));
  write_text(folder.path("b"), "a\xff");
  const auto message = error_of<DataError>(
      [&] { data::character_tokenizer_json({folder.path("b")}); });
  EXPECT_TRUE(is_error(message, ErrorCode::kMalformedData, {folder.path("b")}));
}

}  // namespace
}  // namespace lockstep::tokenize_files_test
