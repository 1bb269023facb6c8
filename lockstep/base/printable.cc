#include "lockstep/base/printable.h"

#include <algorithm>

namespace lockstep {
namespace {

/// A UTF-8 character. Its length is 0 if the bytes are not valid.
struct Character {
  char32_t code = 0;
  size_t length = 0;
};

Character character_at(std::string_view text, size_t at) {
  const auto lead = static_cast<unsigned char>(text[at]);
  if (lead < 0x80) return {lead, 1};
  const size_t length = lead < 0xc2   ? 0
                        : lead < 0xe0 ? 2
                        : lead < 0xf0 ? 3
                        : lead < 0xf5 ? 4
                                      : 0;
  if (length == 0 || length > text.size() - at) return {};
  char32_t code = lead & (0x7fU >> length);
  for (size_t i = 1; i < length; ++i) {
    const auto next = static_cast<unsigned char>(text[at + i]);
    if ((next & 0xc0) != 0x80) return {};
    code = code << 6 | (next & 0x3fU);
  }
  // Not valid: an overlong form, a UTF-16 surrogate, or beyond Unicode.
  const bool is_valid = code >= (length == 2   ? 0x80U
                                 : length == 3 ? 0x800U
                                               : 0x10000U) &&
                        !(code >= 0xd800 && code < 0xe000) && code < 0x110000;
  return is_valid ? Character{code, length} : Character{};
}

bool is_control(char32_t code) {
  const bool ends_line = code == 0x2028 || code == 0x2029;
  const bool changes_direction =
      code == 0x061c || code == 0x200e || code == 0x200f ||
      (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
  return code < 0x20 || (code >= 0x7f && code < 0xa0) || ends_line ||
         changes_direction;
}

}  // namespace

std::string printable(std::string_view text, size_t max_bytes) {
  std::string shown;
  for (size_t at = 0; at < text.size();) {
    const auto [code, length] = character_at(text, at);
    const size_t step = std::max<size_t>(1, length);
    if (shown.size() + step > max_bytes) return shown + " [...]";
    const bool is_shown =
        length > 0 && (!is_control(code) || code == '\n' || code == '\t');
    if (is_shown) {
      shown.append(text.substr(at, step));
    } else if (text[at] != '\r') {
      shown += '?';
    }
    at += step;
  }
  return shown;
}

std::string printable_line(std::string_view text, size_t max_bytes) {
  std::string shown = printable(text, max_bytes);
  std::replace_if(
      shown.begin(), shown.end(),
      [](char letter) { return letter == '\n' || letter == '\t'; }, '?');
  return shown;
}

std::string printable_ascii(std::string text) {
  std::replace_if(
      text.begin(), text.end(),
      [](char letter) { return letter < ' ' || letter > '~'; }, '?');
  return text;
}

}  // namespace lockstep
