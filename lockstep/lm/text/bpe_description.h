#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/json.h"
#include "lockstep/base/strict_json.h"

namespace lockstep::data {

/// A token that is searched for in the text before the text is cut into words.
struct AddedToken {
  uint32_t id = 0;
  std::string text;
  bool is_special = false;
  /// Hugging Face's library first searches for the tokens without this flag.
  bool is_normalized = false;
};

/// Description of byte pair encoding over bytes, from a tokenizer.json of
/// Hugging Face or the two files of GPT-2. Tokens are spelled in the 256
/// letters that stand for bytes there ("Ġ" is a blank).
struct BpeDescription {
  std::vector<std::pair<std::string, uint32_t>> vocabulary;
  /// Merges in the order in which they are applied.
  std::vector<std::pair<std::string, std::string>> merges;
  std::vector<AddedToken> added;
  /// Regular expressions that cut the text, each what the previous one left.
  std::vector<std::string> splits;
  /// True if GPT-2's expression comes last.
  bool has_gpt2_split = true;
  /// True if a blank is added before a text that does not begin with one.
  bool add_prefix_space = false;
  /// True if a word that is a token becomes that token, regardless of the
  /// merges.
  bool ignore_merges = false;
};

/// Reads a parsed tokenizer.json. Throws DataError: kMalformedData if the
/// document is not such a file; kMalformedData, naming the field, if it has
/// another kind of tokenizer. `source` names the origin of the text in
/// messages.
BpeDescription read_bpe(const nlohmann::json& document,
                        const std::string& source);

/// Writes a tokenizer.json that both libraries read.
std::string write_bpe_json(const BpeDescription& description);

/// Reads GPT-2's vocab.json and merges.txt. "<|endoftext|>" is a special token
/// if the vocabulary has it. Throws DataError as read_bpe() does.
BpeDescription read_gpt2_files(std::string_view vocab_json,
                               std::string_view merges_txt,
                               const std::string& source);

/// Limits for the files of a tokenizer.
inline constexpr size_t kMaxTokenizerBytes = size_t{64} << 20;
inline constexpr size_t kMaxBpeTokens = size_t{1} << 20;
inline constexpr size_t kLongestToken = 4096;
inline constexpr JsonLimits kTokenizerJsonLimits{
    .depth = 12, .listed = kMaxBpeTokens, .fail = fail_data};

}  // namespace lockstep::data
