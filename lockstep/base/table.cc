#include "lockstep/base/table.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/terminal.h"

namespace lockstep {
namespace {

// What a horizontal rule is drawn with.
struct Rule {
  std::string_view left, line, cross, right;
};

struct Frame {
  Rule top, middle, bottom;
  std::string_view vertical;
};

constexpr Frame kBoxes{
    {"┌", "─", "┬", "┐"}, {"├", "─", "┼", "┤"}, {"└", "─", "┴", "┘"}, "│"};
constexpr Frame kAscii{
    {"+", "-", "+", "+"}, {"+", "-", "+", "+"}, {"+", "-", "+", "+"}, "|"};

std::string draw(const Rule& rule, const std::vector<size_t>& widths) {
  std::string text(rule.left);
  for (size_t column = 0; column < widths.size(); ++column) {
    if (column > 0) text += rule.cross;
    for (size_t i = 0; i < widths[column] + 2; ++i) text += rule.line;
  }
  text += rule.right;
  return text + "\n";
}

std::string pad(const std::string& cell, size_t width, Align align) {
  const std::string space(width - display_width(cell), ' ');
  return align == Align::kLeft ? cell + space : space + cell;
}

}  // namespace

size_t display_width(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char byte) {
        return (static_cast<unsigned char>(byte) & 0xC0) != 0x80;
      }));
}

std::string bar(double fraction, int width) {
  const double columns = std::clamp(fraction, 0.0, 1.0) * width;
  std::string text;
  if (!locale_is_utf8()) {
    text.assign(static_cast<size_t>(std::lround(columns)), '#');
    return text;
  }
  const long eighths = std::lround(columns * 8);
  for (long i = 0; i < eighths / 8; ++i) text += "█";
  static constexpr std::string_view kParts[] = {"",  "▏", "▎", "▍",
                                                "▌", "▋", "▊", "▉"};
  return text + std::string(kParts[eighths % 8]);
}

Table::Table(std::vector<std::string> header)
    : header_(std::move(header)), alignment_(header_.size(), Align::kRight) {
  if (!alignment_.empty()) alignment_.front() = Align::kLeft;
}

void Table::align(std::vector<Align> alignment) {
  alignment_ = std::move(alignment);
  alignment_.resize(header_.size(), Align::kLeft);
}

void Table::add_row(std::vector<std::string> cells) {
  if (cells.size() > header_.size()) {
    throw InvalidArgument(
        "report", {.code = ErrorCode::kMisuse,
                   .what = "a table's row has too many cells",
                   .expected = fmt::format("at most {}", header_.size()),
                   .got = std::to_string(cells.size())});
  }
  cells.resize(header_.size());
  rows_.push_back(std::move(cells));
}

void Table::add_rule() { rows_.emplace_back(); }

std::string Table::render() const {
  const Frame& frame = locale_is_utf8() ? kBoxes : kAscii;
  std::vector<size_t> widths;
  for (size_t column = 0; column < header_.size(); ++column) {
    widths.push_back(display_width(header_[column]));
    for (const auto& row : rows_) {
      if (row.empty()) continue;
      widths.back() = std::max(widths.back(), display_width(row[column]));
    }
  }
  const auto line = [&](const std::vector<std::string>& cells) {
    std::string text;
    for (size_t column = 0; column < cells.size(); ++column) {
      text +=
          fmt::format("{} {} ", frame.vertical,
                      pad(cells[column], widths[column], alignment_[column]));
    }
    return text + std::string(frame.vertical) + "\n";
  };

  std::string text = draw(frame.top, widths) + line(header_);
  text += draw(frame.middle, widths);
  for (const auto& row : rows_) {
    text += row.empty() ? draw(frame.middle, widths) : line(row);
  }
  return text + draw(frame.bottom, widths);
}

}  // namespace lockstep
