#include "lockstep/data/text/utf8.h"

#include <cstdint>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::data {
namespace {

[[noreturn]] void refuse(std::string_view text, size_t at) {
  throw DataError(
      {.code = ErrorCode::kMalformedData,
       .what = fmt::format("byte {} of the text is not UTF-8", at),
       .expected = "a text in UTF-8",
       .got = fmt::format("0x{:02x}", static_cast<uint8_t>(text[at])),
       .fix = "convert it, or take its bytes as tokens: --tokenizer bytes"});
}

}  // namespace

char32_t Utf8Reader::next() {
  const size_t start = at_;
  const auto first = static_cast<uint8_t>(text_[at_++]);
  if (first < 0x80) return first;
  // Number of following bytes, and the least code point that needs as many.
  const int following = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : 1;
  constexpr char32_t kLeast[] = {0, 0x80, 0x800, 0x10000};
  if (first < 0xc2 || first > 0xf4) refuse(text_, start);
  auto character = static_cast<char32_t>(first & (0x3f >> following));
  for (int i = 0; i < following; ++i) {
    if (at_ == text_.size()) refuse(text_, start);
    const auto byte = static_cast<uint8_t>(text_[at_++]);
    if ((byte & 0xc0) != 0x80) refuse(text_, start);
    character = (character << 6) | (byte & 0x3f);
  }
  const bool is_surrogate = character >= 0xd800 && character <= 0xdfff;
  if (character < kLeast[following] || character > 0x10ffff || is_surrogate) {
    refuse(text_, start);
  }
  return character;
}

}  // namespace lockstep::data
