#include "lockstep/base/text.h"

#include <algorithm>
#include <cctype>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/error_code.h"
#include "lockstep/base/table.h"

namespace lockstep {
namespace {

bool same(char a, char b) {
  return std::tolower(static_cast<unsigned char>(a)) ==
         std::tolower(static_cast<unsigned char>(b));
}

/// Returns the number of edits that turn `a` into `b`: insert, delete, replace,
/// swap neighbours (the optimal string alignment distance). Ignores case.
size_t edit_distance(std::string_view a, std::string_view b) {
  const size_t columns = b.size() + 1;
  std::vector<size_t> before(columns), above(columns), row(columns);
  for (size_t j = 0; j < columns; ++j) above[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = above[j - 1] + (same(a[i - 1], b[j - 1]) ? 0 : 1);
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, replaced});
      const bool swapped = i > 1 && j > 1 && same(a[i - 1], b[j - 2]) &&
                           same(a[i - 2], b[j - 1]);
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, above);
    std::swap(above, row);
  }
  return above[b.size()];
}

/// Returns the number of bytes of the first `columns` characters of `text`.
size_t bytes_of(std::string_view text, size_t columns) {
  size_t bytes = 0;
  while (bytes < text.size() &&
         display_width(text.substr(0, bytes + 1)) <= columns) {
    ++bytes;
  }
  return bytes;
}

// Returns whether a shell reads this letter as it is.
bool is_plain_in_shell(char letter) {
  return std::isalnum(static_cast<unsigned char>(letter)) != 0 ||
         std::string_view("-_./:=,+@%").find(letter) != std::string_view::npos;
}

}  // namespace

std::string first_line(std::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

std::string last_line(const std::string& text) {
  const size_t end = text.find_last_not_of(" \t\r\n");
  if (end == std::string::npos) return {};
  const size_t newline = text.find_last_of("\n\r", end);
  const size_t start = newline == std::string::npos ? 0 : newline + 1;
  return text.substr(start, end + 1 - start);
}

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

std::string without_tags(std::string_view message) {
  const size_t end = message.find("] ");
  if (message.starts_with('[') && end != std::string_view::npos &&
      message.substr(1, end - 1).find_first_of(" []") ==
          std::string_view::npos) {
    message.remove_prefix(end + 2);
  }
  for (const ErrorCode code : all_error_codes()) {
    const std::string tag = fmt::format(" [{}]", name_of(code));
    if (!message.ends_with(tag)) continue;
    message.remove_suffix(tag.size());
    break;
  }
  return std::string(message);
}

std::string nearest(std::string_view word,
                    const std::vector<std::string>& candidates) {
  std::string best;
  size_t least = std::max<size_t>(1, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const size_t distance = edit_distance(word, candidate);
    // If every letter differs, it is another word, even if it is short.
    if (distance >= std::max(word.size(), candidate.size())) continue;
    if (distance < least) {
      least = distance;
      best = candidate;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view word,
                         const std::vector<std::string>& candidates) {
  if (candidates.empty()) return "none are known";
  const std::string known = fmt::format("{}", fmt::join(candidates, ", "));
  const std::string near = nearest(word, candidates);
  if (near.empty()) return "known are " + known;
  return fmt::format("did you mean '{}'? Known are {}", near, known);
}

std::string wrap(std::string_view text, size_t width, size_t indent) {
  if (display_width(text) <= width) return std::string(text);
  const std::string margin(std::min(indent, width / 2), ' ');
  std::string result;
  size_t column = 0;
  text = text.substr(0, text.find_last_not_of(' ') + 1);
  while (!text.empty()) {
    const size_t gap = std::min(text.find_first_not_of(' '), text.size());
    const size_t end = std::min(text.find(' ', gap), text.size());
    std::string_view word = text.substr(gap, end - gap);
    text.remove_prefix(end);
    const bool fits = column + gap + display_width(word) <= width;
    const bool is_first_of_line = column == 0;
    if (fits || (is_first_of_line && gap < width)) {
      result.append(gap, ' ');
      column += gap;
    } else {
      result += '\n' + margin;
      column = margin.size();
    }
    // Only words longer than a line don't fit here.
    while (column + display_width(word) > width) {
      const size_t cut = bytes_of(word, width - column);
      result.append(word.substr(0, cut));
      word.remove_prefix(cut);
      result += '\n' + margin;
      column = margin.size();
    }
    result.append(word);
    column += display_width(word);
  }
  return result;
}

std::string shell_quoted(std::string_view word) {
  std::string text = "'";
  for (const char letter : word) {
    text += letter == '\'' ? "'\\''" : std::string(1, letter);
  }
  return text + "'";
}

std::string shell_command(const std::vector<std::string>& words) {
  std::string text;
  for (const auto& word : words) {
    if (!text.empty()) text += ' ';
    const bool is_plain =
        !word.empty() && std::ranges::all_of(word, is_plain_in_shell);
    text += is_plain ? word : shell_quoted(word);
  }
  return text;
}

}  // namespace lockstep
