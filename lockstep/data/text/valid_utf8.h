#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace lockstep::data {

/// Returns the offset of the first byte that belongs to no UTF-8 character
/// (Unicode, table 3-7: no surrogates, no overlong forms, at most U+10FFFF).
std::optional<size_t> first_invalid_utf8(std::string_view text);

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

}  // namespace lockstep::data
