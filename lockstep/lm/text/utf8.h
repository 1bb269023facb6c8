#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

// UTF-8 as defined by RFC 3629 (Unicode, table 3-7): no overlong forms, no
// surrogates, nothing above U+10FFFF.
namespace lockstep::data {

/// Returns the offset of the first byte that belongs to no UTF-8 character.
std::optional<size_t> first_invalid_utf8(std::string_view text);

/// Returns what to do with a file that is no text in UTF-8, given its
/// beginning: unpack it if it is compressed, say. Files of tokens are
/// recognized by llm.c's header.
std::string fix_for_text(std::string_view text);

/// Returns the start of the character after the one at `at`. `text` must be
/// UTF-8.
inline size_t next_utf8(std::string_view text, size_t at) {
  constexpr unsigned kHighBits = 0xC0;
  constexpr unsigned kContinuation = 0x80;
  do {
    ++at;
  } while (at < text.size() &&
           (static_cast<unsigned char>(text[at]) & kHighBits) == kContinuation);
  return at;
}

/// Reads the characters of a text one after another.
class Utf8Reader {
 public:
  explicit Utf8Reader(std::string_view text) : text_(text) {}

  bool at_end() const { return at_ == text_.size(); }
  /// Returns the offset of the next byte.
  size_t position() const { return at_; }
  /// Throws DataError (kMalformedData) naming the byte that is not UTF-8.
  char32_t next();

 private:
  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace lockstep::data
