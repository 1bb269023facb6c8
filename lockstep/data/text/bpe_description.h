#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/json.h"
#include "lockstep/base/strict_json.h"

namespace lockstep::data {

/// A token that is found in text as it is, before the text is cut into words.
struct AddedToken {
  uint32_t id = 0;
  std::string text;
  bool is_special = false;
  /// Hugging Face's library looks for those that are not first.
  bool is_normalized = false;
};

/// What a tokenizer.json of Hugging Face's, or GPT-2's two files, say of byte
/// pair encoding over bytes. Tokens are spelled in the 256 letters that stand
/// for bytes there ("Ġ" is a blank).
struct BpeDescription {
  std::vector<std::pair<std::string, uint32_t>> vocabulary;
  /// The first is applied first.
  std::vector<std::pair<std::string, std::string>> merges;
  std::vector<AddedToken> added;
  /// Regular expressions that cut the text, each what the one before left.
  std::vector<std::string> splits;
  /// GPT-2's expression comes last.
  bool has_gpt2_split = true;
  /// A blank goes before a text that does not begin with one.
  bool add_prefix_space = false;
  /// A word that is a token is that token, whatever the merges would make.
  bool ignore_merges = false;
};

/// Reads a tokenizer.json, once parsed. Throws DataError: kMalformedJson for
/// what is not such a file, kMalformedData for a tokenizer of another kind,
/// naming the field; `source` says in messages where the text is from.
BpeDescription read_bpe(const nlohmann::json& document,
                        const std::string& source);

/// The same as a tokenizer.json that both libraries read.
std::string write_bpe_json(const BpeDescription& description);

/// Reads GPT-2's vocab.json and merges.txt. "<|endoftext|>", where it is in the
/// vocabulary, is a special token. Throws DataError as read_bpe().
BpeDescription read_gpt2_files(std::string_view vocab_json,
                               std::string_view merges_txt,
                               const std::string& source);

/// What a file of a tokenizer may hold at most.
inline constexpr size_t kMostTokenizerBytes = size_t{64} << 20;
inline constexpr size_t kMostBpeTokens = size_t{1} << 20;
inline constexpr size_t kLongestToken = 4096;
inline constexpr JsonLimits kTokenizerJsonLimits{
    .depth = 12, .listed = kMostBpeTokens, .fail = fail_data};

}  // namespace lockstep::data
