#include "lockstep/lm/text/bpe_tokenizer.h"

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/stopwatch.h"
#include "lockstep/lm/text/tokenizer.h"
#include "lockstep/lm/text/word_regex.h"
#include "tests/base/is_error.h"
#include "tests/base/temporary_folder.h"
#include "tests/lm/text/tiny_tokenizer.h"

namespace lockstep::bpe_test {
namespace {

using data::parse_tokenizer;
using nlohmann::json;
using Ids = std::vector<uint32_t>;

std::shared_ptr<const data::Tokenizer> tokenizer_of(const json& document) {
  return parse_tokenizer(document.dump(), "t.json");
}

// Expects that the tiny tokenizer is refused after `change`.
void expect_refused(ErrorCode code,
                    std::initializer_list<std::string_view> names,
                    const std::function<void(json&)>& change) {
  json document = tiny_tokenizer();
  change(document);
  const auto message = error_of<DataError>([&] { tokenizer_of(document); });
  EXPECT_TRUE(is_error(message, code, {"t.json"}));
  EXPECT_TRUE(is_error(message, code, names));
}

// Computed by hand from the merges: "a b" comes first, then "ab c", then "b c".
TEST(BpeTokenizer, MergesInTheOrderOfTheList) {
  const auto tokenizer = tokenizer_of(tiny_tokenizer());
  EXPECT_EQ(tokenizer->vocabulary(), 260);
  EXPECT_EQ(tokenizer->encode("abc"), (Ids{257}));
  EXPECT_EQ(tokenizer->encode("bc"), (Ids{258}));
  EXPECT_EQ(tokenizer->encode("bcabab"), (Ids{258, 256, 256}));
  EXPECT_EQ(tokenizer->encode(" ab"), (Ids{' ', 256}));
  EXPECT_EQ(tokenizer->encode(""), Ids{});
}

TEST(BpeTokenizer, GivesTheBytesBack) {
  const auto tokenizer = tokenizer_of(tiny_tokenizer());
  const std::string text = "abc é 😀\n\t'll 12\xc2\xa0x";
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  EXPECT_EQ(tokenizer->decode(Ids{0xC3}), "\xC3");
  const auto message =
      error_of<InvalidArgument>([&] { tokenizer->decode(Ids{260}); });
  EXPECT_TRUE(is_error(message, ErrorCode::kBadOption, {"260"}));
}

TEST(BpeTokenizer, FindsAddedTokensBeforeWords) {
  const auto tokenizer = tokenizer_of(tiny_tokenizer());
  EXPECT_EQ(tokenizer->end_of_text(), 259u);
  EXPECT_EQ(tokenizer->encode("ab<|endoftext|>ab<|end"),
            (Ids{256, 259, 256, '<', '|', 'e', 'n', 'd'}));
}

TEST(BpeTokenizer, TakesAWordThatIsATokenWhereMergesAreIgnored) {
  json document = tiny_tokenizer();
  document["model"]["merges"] = json::array();
  EXPECT_EQ(tokenizer_of(document)->encode("abc"), (Ids{'a', 'b', 'c'}));
  document["model"]["ignore_merges"] = true;
  EXPECT_EQ(tokenizer_of(document)->encode("abc"), (Ids{257}));
}

TEST(BpeTokenizer, IsTheSameAfterToJson) {
  json document = tiny_tokenizer();
  document["pre_tokenizer"] = {{"type", "Sequence"},
                               {"pretokenizers",
                                {{{"type", "Split"},
                                  {"pattern", {{"Regex", R"(\p{N}{1,3}|\s+)"}}},
                                  {"behavior", "Isolated"},
                                  {"invert", false}},
                                 {{"type", "ByteLevel"},
                                  {"add_prefix_space", false},
                                  {"use_regex", false}}}}};
  const auto tokenizer = tokenizer_of(document);
  const auto again = parse_tokenizer(tokenizer->to_json(), "again");
  EXPECT_EQ(again->to_json(), tokenizer->to_json());
  EXPECT_EQ(again->encode("ab1234ab c"), tokenizer->encode("ab1234ab c"));
  EXPECT_EQ(again->end_of_text(), tokenizer->end_of_text());
}

TEST(BpeTokenizer, IsReadFromTheTwoFilesOfGpt2) {
  const TemporaryFolder folder;
  json vocabulary = tiny_tokenizer()["model"]["vocab"];
  vocabulary["<|endoftext|>"] = 259;
  write_text(folder.path("vocab.json"), vocabulary.dump());
  write_text(folder.path("merges.txt"), "#version: 0.2\na b\nab c\r\nb c\n");
  const auto tokenizer = data::open_tokenizer(folder.path());
  EXPECT_EQ(tokenizer->encode("abc<|endoftext|>"), (Ids{257, 259}));
  EXPECT_EQ(tokenizer->end_of_text(), 259u);
  write_text(folder.path("merges.txt"), "a b\nabc\n");
  const auto message =
      error_of<DataError>([&] { data::open_tokenizer(folder.path()); });
  EXPECT_TRUE(is_error(message, ErrorCode::kMalformedData, {"merge 2", "abc"}));
}

TEST(BpeTokenizer, EncodesInSeveralThreads) {
  const auto tokenizer = tokenizer_of(tiny_tokenizer());
  std::string text;
  for (int i = 0; i < 2000; ++i) text += "abc" + std::to_string(i) + " bcab ";
  const Ids expected = tokenizer->encode(text);
  std::vector<Ids> results(4);
  std::vector<std::thread> threads;
  for (Ids& result : results) {
    threads.emplace_back([&] { result = tokenizer->encode(text); });
  }
  for (auto& thread : threads) thread.join();
  for (const Ids& result : results) EXPECT_EQ(result, expected);
}

// A megabyte in one word. With quadratic cost, this would take hours.
TEST(BpeTokenizer, MergesALongWordInTime) {
  const auto tokenizer = tokenizer_of(tiny_tokenizer());
  std::string text;
  for (int i = 0; i < 350'000; ++i) text += "abc";
  const Stopwatch watch;
  EXPECT_EQ(tokenizer->encode(text), Ids(350'000, 257));
  EXPECT_LT(watch.seconds(), 60);
}

TEST(BpeTokenizer, RefusesTextThatIsNotUtf8) {
  const auto tokenizer = tokenizer_of(tiny_tokenizer());
  // Unicode, table 3-7: overlong, a surrogate, too large, truncated.
  for (const std::string bytes :
       {"\x80", "\xC0\x80", "\xE0\x80\x80", "\xED\xA0\x80", "\xF0\x80\x80\x80",
        "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xE2\x82", "\xFF"}) {
    const auto message =
        error_of<DataError>([&] { tokenizer->encode("abcdefghijk" + bytes); });
    EXPECT_TRUE(is_error(message, ErrorCode::kMalformedData, {"byte 11"}));
  }
}

TEST(HostileTokenizer, HasIdsThatCantBe) {
  constexpr auto kCode = ErrorCode::kMalformedData;
  expect_refused(kCode, {"256", "twice"},
                 [](json& t) { t["model"]["vocab"]["bc"] = 256; });
  expect_refused(kCode, {"hole"},
                 [](json& t) { t["model"]["vocab"]["bc"] = 300; });
  expect_refused(kCode, {"hole", "260"},
                 [](json& t) { t["added_tokens"][0]["id"] = 260; });
  expect_refused(kCode, {"256"},
                 [](json& t) { t["added_tokens"][0]["id"] = 256; });
  expect_refused(kCode, {"two ids", "abc"},
                 [](json& t) { t["added_tokens"][0]["content"] = "abc"; });
  for (const json& id : {json(-1), json(1.5), json("1"), json(1u << 31)}) {
    expect_refused(ErrorCode::kMalformedData, {"vocab", "bc"},
                   [&](json& t) { t["model"]["vocab"]["bc"] = id; });
  }
}

TEST(HostileTokenizer, HasATokenTwice) {
  std::string text = tiny_tokenizer().dump();
  text.replace(text.find("\"abc\":"), 6, "\"bc\":6,\"abc\":");
  const auto message =
      error_of<DataError>([&] { parse_tokenizer(text, "t.json"); });
  EXPECT_TRUE(is_error(message, ErrorCode::kMalformedData, {"\"bc\" twice"}));
}

TEST(HostileTokenizer, HasMergesThatCantBe) {
  const auto refuse = [](ErrorCode code, std::string_view name, json merge) {
    expect_refused(code, {name},
                   [&](json& t) { t["model"]["merges"].push_back(merge); });
  };
  refuse(ErrorCode::kMalformedData, "xy", "xy a");     // unknown
  refuse(ErrorCode::kMalformedData, "ca", "c a");      // makes an unknown token
  refuse(ErrorCode::kMalformedData, "twice", "a b");   // already exists
  refuse(ErrorCode::kMalformedData, "merge 3", "ab");  // not a pair
  refuse(ErrorCode::kMalformedData, "merge 3", "a b c");
  refuse(ErrorCode::kMalformedData, "merge 3", {"a", "b", "c"});
  refuse(ErrorCode::kMalformedData, "merge 3", {"a", 1});
  refuse(ErrorCode::kMalformedData, "merge 3", nullptr);
}

TEST(HostileTokenizer, LacksAByte) {
  expect_refused(ErrorCode::kMalformedData, {"byte 33"}, [](json& t) {
    t["model"]["vocab"].erase("!");
    t["model"]["vocab"]["zz"] = 33;
  });
}

TEST(HostileTokenizer, IsNoTokenizer) {
  for (const char* text : {"", "{", "[]", "{}", "3", "{\"model\":3}", "{}x"}) {
    const auto message =
        error_of<DataError>([&] { parse_tokenizer(text, "t.json"); });
    EXPECT_TRUE(is_error(message, ErrorCode::kMalformedData, {"t.json"}));
  }
}

TEST(OtherTokenizer, IsRefusedByTheNameOfItsField) {
  const auto refuse = [](std::string_view name, const char* at, json value) {
    expect_refused(ErrorCode::kMalformedData, {name}, [&](json& t) {
      t[json::json_pointer(at)] = std::move(value);
    });
  };
  const json split{{"type", "Split"},
                   {"pattern", {{"Regex", "a"}}},
                   {"behavior", "Removed"}};
  const json byte_level{{"type", "ByteLevel"}};
  refuse("model.type", "/model/type", "WordPiece");
  refuse("model.byte_fallback", "/model/byte_fallback", true);
  refuse("model.dropout", "/model/dropout", 0.1);
  refuse("model.end_of_word_suffix", "/model/end_of_word_suffix", "</w>");
  refuse("normalizer", "/normalizer", {{"type", "NFC"}});
  refuse("truncation", "/truncation", {{"max_length", 512}});
  refuse("padding", "/padding", {{"length", 512}});
  refuse("pre_tokenizer.type", "/pre_tokenizer/type", "Metaspace");
  refuse("behavior", "/pre_tokenizer",
         {{"type", "Sequence"}, {"pretokenizers", {split, byte_level}}});
  refuse("pretokenizers[0].type", "/pre_tokenizer",
         {{"type", "Sequence"},
          {"pretokenizers", {{{"type", "Digits"}}, byte_level}}});
  refuse("decoder", "/decoder", nullptr);
  refuse("lstrip", "/added_tokens/0/lstrip", true);
}

TEST(OtherTokenizer, IsRefusedByItsKind) {
  const auto message = error_of<DataError>(
      [&] { parse_tokenizer(R"({"type":"syllables"})", "t.json"); });
  EXPECT_TRUE(is_error(message, ErrorCode::kUnknownName, {"syllables"}));
}

std::vector<std::string> words(const std::string& pattern,
                               const std::string& text) {
  std::vector<std::string> result;
  data::WordRegex::Matcher matcher;
  data::WordRegex(pattern, "t.json")
      .split(text, matcher,
             [&](std::string_view word) { result.emplace_back(word); });
  return result;
}

TEST(WordRegex, MakesAWordOfAMatchAndOfWhatLiesBetween) {
  using Words = std::vector<std::string>;
  EXPECT_EQ(words("b+", "abbcab"), (Words{"a", "bb", "ca", "b"}));
  EXPECT_EQ(words("x", "aé"), (Words{"aé"}));
  // An empty match cuts at its position.
  EXPECT_EQ(words("(?=b)", "abab"), (Words{"a", "ba", "b"}));
  EXPECT_EQ(words(data::kGpt2Pattern, "I'll go  on"),
            (Words{"I", "'ll", " go", " ", " on"}));
}

TEST(WordRegex, RefusesWhatOnigurumaReadsOtherwise) {
  for (const char* pattern : {R"(\w)",
                              R"(\bx)",
                              R"(\h)",
                              "^a",
                              "a$",
                              "(?R)",
                              "(?<n>a)",
                              "(*FAIL)",
                              "[[:alpha:]]",
                              "[a&&b]",
                              "[]a]",
                              "a{,3}",
                              "a{1,2}+",
                              R"(\p{Han})",
                              R"(\pL)",
                              R"(\Qa\E)",
                              R"(\K)",
                              R"(\1)",
                              "(?s:.)",
                              "a\\",
                              "(",
                              "a{99999}",
                              "(((a{1000}){1000}){1000})"}) {
    const auto message =
        error_of<DataError>([&] { data::WordRegex(pattern, "t.json"); });
    EXPECT_TRUE(is_error(message, ErrorCode::kMalformedData, {"t.json"}))
        << pattern;
  }
}

TEST(WordRegex, GivesUpWhereAMatchTakesForever) {
  const Stopwatch watch;
  const auto message =
      error_of<DataError>([&] { words("(a+)+[bc]", std::string(5000, 'a')); });
  EXPECT_TRUE(is_error(message, ErrorCode::kMalformedData, {"t.json"}));
  EXPECT_LT(watch.seconds(), 30);
}

// A long text may take long.
TEST(WordRegex, GoesThroughALongRunOfBlanks) {
  EXPECT_EQ(words(data::kGpt2Pattern, std::string(3'000'000, ' ') + "x").size(),
            2u);
}

}  // namespace
}  // namespace lockstep::bpe_test
