#include "lockstep/base/table.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/terminal.h"
#include "lockstep/base/text.h"

namespace lockstep {
namespace {

// The characters of a horizontal rule.
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

std::string draw_rule(const Rule& rule, const std::vector<size_t>& widths) {
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

void Table::name_rows_by(size_t count) {
  names_ = std::min(count, header_.size());
}

std::vector<size_t> Table::widths() const {
  std::vector<size_t> widths;
  for (size_t column = 0; column < header_.size(); ++column) {
    widths.push_back(display_width(header_[column]));
    for (const auto& row : rows_) {
      if (row.empty()) continue;
      widths.back() = std::max(widths.back(), display_width(row[column]));
    }
  }
  return widths;
}

// Returns the columns of each table into which this one is split. Returns an
// empty list if some column does not fit next to the names.
std::vector<Table::Columns> Table::folded(size_t width) const {
  constexpr size_t kEdge = 1;         // the left edge of the frame
  constexpr size_t kAroundACell = 3;  // two spaces and the edge to the right
  const std::vector<size_t> columns = widths();
  Columns names;
  size_t taken = kEdge;
  for (size_t name = 0; name < names_; ++name) {
    names.push_back(name);
    taken += columns[name] + kAroundACell;
  }
  std::vector<Columns> tables{names};
  size_t at = taken;
  for (size_t column = names_; column < columns.size(); ++column) {
    const size_t needed = columns[column] + kAroundACell;
    if (taken + needed > width) return {};
    if (at + needed > width) {
      tables.push_back(names);
      at = taken;
    }
    tables.back().push_back(column);
    at += needed;
  }
  if (taken > width) return {};
  return tables;
}

std::string Table::draw(const Columns& columns) const {
  const Frame& frame = locale_is_utf8() ? kBoxes : kAscii;
  const std::vector<size_t> all_widths = widths();
  std::vector<size_t> drawn_widths;
  for (const size_t column : columns) {
    drawn_widths.push_back(all_widths[column]);
  }
  const auto line = [&](const std::vector<std::string>& cells) {
    std::string text;
    for (const size_t column : columns) {
      text += fmt::format(
          "{} {} ", frame.vertical,
          pad(cells[column], all_widths[column], alignment_[column]));
    }
    return text + std::string(frame.vertical) + "\n";
  };

  std::string text = draw_rule(frame.top, drawn_widths) + line(header_);
  text += draw_rule(frame.middle, drawn_widths);
  for (const auto& row : rows_) {
    text += row.empty() ? draw_rule(frame.middle, drawn_widths) : line(row);
  }
  return text + draw_rule(frame.bottom, drawn_widths);
}

std::string Table::lists(size_t width) const {
  constexpr size_t kMargin = 2;
  // Least room for cells next to the longest header. With less, they go below.
  constexpr size_t kMinRoom = 12;
  size_t labels = 0;
  for (size_t column = names_; column < header_.size(); ++column) {
    labels = std::max(labels, display_width(header_[column]));
  }
  const size_t beside = kMargin + labels + 2;
  const size_t indent =
      beside + kMinRoom <= width ? beside : size_t{2 * kMargin};
  std::string text;
  // A row whose first cell is empty belongs to the row before.
  std::string first_name;
  for (const auto& row : rows_) {
    if (row.empty()) continue;
    if (!row.front().empty()) first_name = row.front();
    std::string name = first_name;
    for (size_t column = 1; column < names_; ++column) {
      if (!row[column].empty()) name += ", " + row[column];
    }
    text += wrap(name, width, kMargin) + "\n";
    for (size_t column = names_; column < row.size(); ++column) {
      if (row[column].empty()) continue;
      const std::string label = std::string(kMargin, ' ') + header_[column];
      if (indent == beside) {
        text +=
            wrap(pad(label, beside, Align::kLeft) + row[column], width, indent);
      } else {
        text += wrap(label, width, kMargin) + "\n" +
                wrap(std::string(indent, ' ') + row[column], width, indent);
      }
      text += "\n";
    }
  }
  return text;
}

std::string Table::render() const {
  Columns all(header_.size());
  std::iota(all.begin(), all.end(), size_t{0});
  return draw(all);
}

std::string Table::render(size_t width) const {
  const std::vector<Columns> tables = folded(width);
  if (tables.empty()) return lists(width);
  std::string text;
  for (const Columns& columns : tables) text += draw(columns);
  return text;
}

}  // namespace lockstep
