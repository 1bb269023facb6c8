#include "lockstep/lm/text/utf8.h"

#include <cstdint>
#include <cstring>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::data {
namespace {

// Returns the bytes of the character at the start of `text`; 0 if it is
// invalid.
size_t character_bytes(std::string_view text) {
  const auto byte = [&](size_t i) -> unsigned {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
  };
  const auto continues = [&](size_t first, size_t last) {
    for (size_t i = first; i <= last; ++i) {
      if (byte(i) < 0x80 || byte(i) > 0xBF) return false;
    }
    return true;
  };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4) return 0;
  if (lead < 0xE0) return continues(1, 1) ? 2 : 0;
  const unsigned second = byte(1);
  if (lead < 0xF0) {
    const unsigned least = lead == 0xE0 ? 0xA0 : 0x80;
    const unsigned most = lead == 0xED ? 0x9F : 0xBF;
    return second >= least && second <= most && continues(2, 2) ? 3 : 0;
  }
  const unsigned least = lead == 0xF0 ? 0x90 : 0x80;
  const unsigned most = lead == 0xF4 ? 0x8F : 0xBF;
  return second >= least && second <= most && continues(2, 3) ? 4 : 0;
}

[[noreturn]] void refuse(std::string_view text, size_t at) {
  throw DataError(
      {.code = ErrorCode::kMalformedData,
       .what = fmt::format("byte {} of the text is not UTF-8", at),
       .expected = "a text in UTF-8",
       .got = fmt::format("0x{:02x}", static_cast<uint8_t>(text[at])),
       .fix = fix_for_text(text)});
}

struct Kind {
  std::string_view beginning;
  const char* cure;
};

constexpr Kind kKinds[] = {
    {"\x1f\x8b", "it is compressed: unpack it (gunzip)"},
    {"BZh", "it is compressed: unpack it (bunzip2)"},
    {"\xfd"
     "7zXZ",
     "it is compressed: unpack it (unxz)"},
    {"\x28\xb5\x2f\xfd", "it is compressed: unpack it (unzstd)"},
    {"PK\x03\x04", "it is an archive: unpack it (unzip)"},
    {"PAR1", "it is a Parquet file: write its texts to a text file"},
    {"%PDF", "it is a PDF: convert it (pdftotext)"},
    {"\xff\xfe", "it is UTF-16: convert it (iconv -f UTF-16 -t UTF-8)"},
    {"\xfe\xff", "it is UTF-16: convert it (iconv -f UTF-16 -t UTF-8)"},
    // The first number of llm.c's headers: 20240520 and 20240801.
    {"\x88\xd8\x34\x01", "it holds tokens: name its folder, not the file"},
    {"\xa1\xd9\x34\x01", "it holds tokens: name its folder, not the file"},
};

}  // namespace

std::string fix_for_text(std::string_view text) {
  for (const auto& [beginning, cure] : kKinds) {
    if (text.starts_with(beginning)) return cure;
  }
  return "convert it (iconv -t UTF-8); if it holds tokens, name its folder; "
         "--tokenizer bytes takes any bytes as tokens";
}

std::optional<size_t> first_invalid_utf8(std::string_view text) {
  constexpr uint64_t kHighBits = 0x8080808080808080;
  size_t at = 0;
  while (at < text.size()) {
    // Checks eight ASCII letters at once.
    uint64_t eight = kHighBits;
    if (text.size() - at >= sizeof eight) {
      std::memcpy(&eight, text.data() + at, sizeof eight);
    }
    if ((eight & kHighBits) == 0) {
      at += sizeof eight;
      continue;
    }
    const size_t bytes = character_bytes(text.substr(at));
    if (bytes == 0) return at;
    at += bytes;
  }
  return std::nullopt;
}

char32_t Utf8Reader::next() {
  const size_t bytes = character_bytes(text_.substr(at_));
  if (bytes == 0) refuse(text_, at_);
  const auto first = static_cast<uint8_t>(text_[at_]);
  // The lead byte of several has as many high bits as there are bytes.
  auto character =
      static_cast<char32_t>(bytes == 1 ? first : first & (0x7f >> bytes));
  for (const char byte : text_.substr(at_ + 1, bytes - 1)) {
    character = (character << 6) | (static_cast<uint8_t>(byte) & 0x3f);
  }
  at_ += bytes;
  return character;
}

}  // namespace lockstep::data
