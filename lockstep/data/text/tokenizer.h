#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::data {

/// Cuts text into tokens, and puts tokens together to text again. Thread-safe
/// once made.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// The number of tokens there are: ids are 0..vocabulary()-1.
  virtual int64_t vocabulary() const = 0;
  /// Throws DataError (kMalformedData) for text that has no tokens, such as a
  /// character that is not in the vocabulary.
  virtual std::vector<uint32_t> encode(std::string_view text) const = 0;
  /// The bytes that the tokens stand for, of which several may make up one
  /// character of UTF-8. Throws InvalidArgument for an id outside of the
  /// vocabulary.
  virtual std::string decode(std::span<const uint32_t> ids) const = 0;
  /// The token that stands between two texts.
  virtual std::optional<uint32_t> end_of_text() const { return std::nullopt; }

  /// As JSON, from which parse_tokenizer() makes the same one again.
  virtual std::string to_json() const = 0;
};

/// Throws InvalidArgument unless `id` is one of 0..vocabulary-1.
void check_id(uint32_t id, int64_t vocabulary);

/// The tokenizer that to_json() described, or that a tokenizer.json of Hugging
/// Face's describes. Throws DataError (kMalformedJson, kMalformedData) naming
/// what can't be; `source` says in messages where the text is from.
std::shared_ptr<const Tokenizer> parse_tokenizer(std::string_view json,
                                                 const std::string& source);

}  // namespace lockstep::data
