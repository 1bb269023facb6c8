#include "lockstep/lm/text/tokenizer.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/lm/text/simple_tokenizers.h"
#include "tests/base/damaged_json.h"
#include "tests/base/error_code_of.h"
#include "tests/lm/text/tiny_tokenizer.h"

namespace lockstep::data {
namespace {

using Ids = std::vector<uint32_t>;

TEST(CharacterTokenizer, NumbersTheCharactersByTheirCodePoints) {
  const auto tokenizer = CharacterTokenizer::from_text("zaß\n€😀a");
  EXPECT_EQ(tokenizer->vocabulary(), 6);
  EXPECT_EQ(tokenizer->encode("\naz€😀ß"), (Ids{0, 1, 2, 4, 5, 3}));
  EXPECT_EQ(tokenizer->decode(Ids{5, 0, 3}), "😀\nß");
}

TEST(CharacterTokenizer, RefusesACharacterThatItHasNot) {
  const auto tokenizer = CharacterTokenizer::from_text("ab");
  EXPECT_EQ(error_code_of([&] { tokenizer->encode("abc"); }),
            ErrorCode::kMalformedData);
  EXPECT_EQ(error_code_of([&] { tokenizer->decode(Ids{2}); }),
            ErrorCode::kBadOption);
}

// RFC 3629: a lone or missing continuation, overlong forms, surrogates, above
// U+10FFFF, and bytes that can't come first.
TEST(CharacterTokenizer, RefusesWhatIsNotUtf8) {
  for (const std::string text :
       {"\x80", "a\xc3", "\xc3(", "\xc0\xaf", "\xe0\x80\xaf", "\xed\xa0\x80",
        "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "\xf0\x9f\x98"}) {
    EXPECT_EQ(error_code_of([&] { CharacterTokenizer::from_text(text); }),
              ErrorCode::kMalformedData)
        << text;
  }
  for (const std::string text : {"\x7f", "\xc2\x80", "\xed\x9f\xbf",
                                 "\xee\x80\x80", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_EQ(CharacterTokenizer::from_text(text)->vocabulary(), 1) << text;
  }
}

TEST(ByteTokenizer, TakesAnything) {
  const ByteTokenizer tokenizer;
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all.push_back(static_cast<char>(byte));
  EXPECT_EQ(tokenizer.encode(all).at(255), 255u);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(all)), all);
}

TEST(ParseTokenizer, MakesTheSameOneAgain) {
  const std::string text = "a\"\\\n\t€😀";
  const auto characters = CharacterTokenizer::from_text(text);
  const auto again = parse_tokenizer(characters->to_json(), "test");
  EXPECT_EQ(again->encode(text), characters->encode(text));
  EXPECT_EQ(again->to_json(), characters->to_json());
  EXPECT_EQ(parse_tokenizer(ByteTokenizer().to_json(), "test")->vocabulary(),
            256);
}

TEST(ParseTokenizer, NamesNoLibraryIfItIsDamaged) {
  auto small = tiny_tokenizer();
  auto& vocabulary = small["model"]["vocab"];
  while (vocabulary.size() > 4) vocabulary.erase(vocabulary.begin());
  for (const auto& document :
       {small, nlohmann::json{{"type", "characters"}, {"characters", "ab"}}}) {
    expect_own_errors(document, [](const nlohmann::json& json) {
      parse_tokenizer(json.dump(), "test");
    });
  }
}

TEST(ParseTokenizer, RefusesWhatDescribesNone) {
  for (const std::string json :
       {R"({"type":"characters"})", R"({"type":"characters","characters":""})",
        R"({"type":"characters","characters":"ba"})",
        R"({"type":"characters","characters":"aa"})"}) {
    EXPECT_EQ(error_code_of([&] { parse_tokenizer(json, "test"); }),
              ErrorCode::kMalformedData)
        << json;
  }
  for (const std::string json : {R"({"type":"words"})", R"({"type":7})"}) {
    EXPECT_EQ(error_code_of([&] { parse_tokenizer(json, "test"); }),
              ErrorCode::kUnknownName)
        << json;
  }
  EXPECT_EQ(error_code_of([] { parse_tokenizer("{", "test"); }),
            ErrorCode::kMalformedData);
}

}  // namespace
}  // namespace lockstep::data
