#include "lockstep/launch/output/printable.h"

#include <algorithm>

namespace lockstep::launch {
namespace {

constexpr size_t kMaxShownLineBytes = 400;

unsigned char byte_at(std::string_view text, size_t i) {
  return i < text.size() ? static_cast<unsigned char>(text[i]) : 0;
}

// The length of the UTF-8 sequence at `i`; 0 if it is not valid.
size_t sequence_length(std::string_view text, size_t i) {
  const unsigned char lead = byte_at(text, i);
  const size_t length = lead < 0x80                   ? 1
                        : lead >= 0xc2 && lead < 0xe0 ? 2
                        : lead >= 0xe0 && lead < 0xf0 ? 3
                        : lead >= 0xf0 && lead < 0xf5 ? 4
                                                      : 0;
  for (size_t j = 1; j < length; ++j) {
    if ((byte_at(text, i + j) & 0xc0) != 0x80) return 0;
  }
  return length;
}

bool is_shown(std::string_view text, size_t i, size_t length) {
  const unsigned char lead = byte_at(text, i);
  if (length == 0) return false;
  if (length == 1) {
    return (lead >= 0x20 && lead != 0x7f) || lead == '\n' || lead == '\t';
  }
  // U+0080 to U+009f are control characters, too; U+202a to U+202e and U+2066
  // to U+2069 change the direction of the text after them.
  if (lead == 0xc2) return byte_at(text, i + 1) >= 0xa0;
  if (lead != 0xe2) return true;
  const unsigned char middle = byte_at(text, i + 1);
  const unsigned char last = byte_at(text, i + 2);
  return !(middle == 0x80 && last >= 0xaa && last <= 0xae) &&
         !(middle == 0x81 && last >= 0xa6 && last <= 0xa9);
}

}  // namespace

std::string printable(std::string_view text, size_t max_bytes) {
  std::string shown;
  for (size_t i = 0; i < text.size();) {
    const size_t length = sequence_length(text, i);
    const size_t step = std::max<size_t>(1, length);
    if (shown.size() + step > max_bytes) return shown + " [...]";
    if (is_shown(text, i, length)) {
      shown.append(text.substr(i, step));
    } else if (text[i] != '\r') {
      shown += '?';
    }
    i += step;
  }
  return shown;
}

std::vector<std::string> last_lines(std::string_view text, size_t count) {
  std::vector<std::string> lines;
  while (!text.empty() && lines.size() < count) {
    const size_t newline = text.find_last_of('\n');
    const size_t begin = newline == std::string_view::npos ? 0 : newline + 1;
    const auto line = text.substr(begin);
    if (line.find_first_not_of(" \t\r") != std::string_view::npos) {
      lines.push_back(printable(line, kMaxShownLineBytes));
    }
    text = text.substr(0, begin == 0 ? 0 : newline);
  }
  std::reverse(lines.begin(), lines.end());
  return lines;
}

}  // namespace lockstep::launch
