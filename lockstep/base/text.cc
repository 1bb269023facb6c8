#include "lockstep/base/text.h"

#include <algorithm>
#include <cctype>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace lockstep {
namespace {

bool same(char a, char b) {
  return std::tolower(static_cast<unsigned char>(a)) ==
         std::tolower(static_cast<unsigned char>(b));
}

/// Edits that turn `a` into `b`: insert, delete, replace, swap neighbours
/// (the optimal string alignment distance). Case does not count.
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

std::string nearest(std::string_view word,
                    const std::vector<std::string>& candidates) {
  std::string best;
  size_t least = std::max<size_t>(1, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const size_t distance = edit_distance(word, candidate);
    // All letters exchanged is another word, however short.
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

}  // namespace lockstep
