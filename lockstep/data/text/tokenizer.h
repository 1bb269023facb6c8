#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::data {

/// Interface that turns text into tokens and tokens back into text. Thread-safe
/// once made.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// Returns the number of tokens. Ids are 0..vocabulary()-1.
  virtual int64_t vocabulary() const = 0;
  /// Throws DataError (kMalformedData) for text that has no tokens: a character
  /// that is not in the vocabulary, say.
  virtual std::vector<uint32_t> encode(std::string_view text) const = 0;
  /// Returns the bytes that the tokens stand for. Several tokens may make up
  /// one UTF-8 character. Throws InvalidArgument for an id outside the
  /// vocabulary.
  virtual std::string decode(std::span<const uint32_t> ids) const = 0;
  /// Returns the token that separates two texts.
  virtual std::optional<uint32_t> end_of_text() const { return std::nullopt; }

  /// Returns JSON from which parse_tokenizer() makes the same tokenizer.
  virtual std::string to_json() const = 0;
};

/// Throws InvalidArgument unless `id` is in 0..vocabulary-1.
void check_id(uint32_t id, int64_t vocabulary);

/// Returns the tokenizer that to_json() or a tokenizer.json of Hugging Face
/// describes. Throws DataError (kMalformedData, kMalformedData) naming the
/// invalid part. `source` names the origin of the text in messages.
std::shared_ptr<const Tokenizer> parse_tokenizer(std::string_view json,
                                                 const std::string& source);

}  // namespace lockstep::data
