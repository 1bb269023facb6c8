#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "lockstep/lm/text/tokenizer.h"

namespace lockstep::data {

/// Tokenizer for any data, with one token for each of the 256 bytes.
class ByteTokenizer : public Tokenizer {
 public:
  int64_t vocabulary() const override { return 256; }
  std::vector<uint32_t> encode(std::string_view text) const override;
  std::string decode(std::span<const uint32_t> ids) const override;
  std::string to_json() const override { return R"({"type":"bytes"})"; }
};

/// Tokenizer with a token for each character (Unicode code point) of a text, in
/// the order of the code points.
class CharacterTokenizer : public Tokenizer {
 public:
  /// Makes a tokenizer for the characters in `text`, which is UTF-8. Throws
  /// DataError naming the byte that is not UTF-8.
  static std::shared_ptr<const CharacterTokenizer> from_text(
      std::string_view text);

  /// `characters`: UTF-8, ascending.
  explicit CharacterTokenizer(const std::string& characters);

  int64_t vocabulary() const override;
  std::vector<uint32_t> encode(std::string_view text) const override;
  std::string decode(std::span<const uint32_t> ids) const override;
  std::string to_json() const override;

 private:
  std::vector<std::string> characters_;  // by id, as UTF-8
  std::unordered_map<char32_t, uint32_t> ids_;
};

}  // namespace lockstep::data
