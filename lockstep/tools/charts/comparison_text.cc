#include "lockstep/tools/charts/comparison_text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/table.h"
#include "lockstep/base/terminal.h"
#include "lockstep/base/text.h"
#include "lockstep/tools/charts/axis.h"
#include "lockstep/tools/tables/comparison_sections.h"

namespace lockstep::tools {
namespace {

constexpr int kBarWidth = 4;
// Longer lines of prose are hard to read.
constexpr size_t kProseWidth = 80;

std::string bold(const std::string& text, Colour colour) {
  return colour == Colour::kAlways ? "\033[1m" + text + "\033[0m" : text;
}

void add(std::string& text, const Section& section, Colour colour,
         size_t width) {
  if (section.rows.empty()) return;
  Table table(section.header);
  // In this table, device names are next to run names.
  const bool is_grouped =
      section.header.size() > 1 && section.header[1] == "Device";
  if (is_grouped) {
    table.align({Align::kLeft, Align::kLeft, Align::kRight, Align::kRight,
                 Align::kRight});
    table.name_rows_by(2);
  }
  for (size_t row = 0; row < section.rows.size(); ++row) {
    const bool starts_run = !section.rows[row].front().empty();
    if (row > 0 && starts_run && is_grouped) table.add_rule();
    table.add_row(section.rows[row]);
  }
  text += "\n" + bold(wrap(section.title, width), colour) + "\n" +
          table.render(width);
}

// The columns of the first table that fit into 80.
constexpr size_t kShortColumns = 4;

void keep_columns(Section& section, size_t count) {
  const auto keep = [&](std::vector<std::string>& cells) {
    cells.resize(std::min(cells.size(), count));
  };
  keep(section.header);
  for (auto& row : section.rows) keep(row);
}

constexpr size_t kNothing = kBlockKinds.size();
constexpr int kMinLaneWidth = 20;
constexpr int kColumnsOfMark = 9;

/// One character of a row.
struct Column {
  std::array<double, kBlockKinds.size()> filled_s{};
  // Longest of the blocks that are shorter than the column and have their
  // middle in it.
  const Block* within = nullptr;
};

size_t kind_of(const Column& column, double column_s) {
  const auto most = std::ranges::max_element(column.filled_s);
  if (*most >= column_s / 2) {
    return static_cast<size_t>(most - column.filled_s.begin());
  }
  return column.within == nullptr ? kNothing : column.within->kind;
}

// Returns the kind of block that fills most of each column. A block that is
// shorter than a column is shown if nothing else would be.
std::vector<size_t> columns_of(const std::vector<Block>& blocks, double seconds,
                               int count) {
  const double column_s = seconds / count;
  std::vector<Column> columns(static_cast<size_t>(count));
  const auto place_of = [&](double moment) {
    return static_cast<size_t>(
        std::clamp(static_cast<int>(moment / column_s), 0, count - 1));
  };
  for (const Block& block : blocks) {
    for (size_t c = place_of(block.begin_s); c <= place_of(block.end_s); ++c) {
      const double begin_s = static_cast<double>(c) * column_s;
      columns[c].filled_s[block.kind] +=
          std::max(0.0, std::min(block.end_s, begin_s + column_s) -
                            std::max(block.begin_s, begin_s));
    }
    if (block.seconds() >= column_s) continue;
    const Block*& within =
        columns[place_of(block.begin_s + block.seconds() / 2)].within;
    if (within == nullptr || within->seconds() < block.seconds()) {
      within = &block;
    }
  }
  std::vector<size_t> kinds;
  for (const Column& column : columns) {
    kinds.push_back(kind_of(column, column_s));
  }
  return kinds;
}

std::string glyphs(size_t kind, size_t count, Colour colour) {
  if (kind == kNothing) return std::string(count, ' ');
  const BlockKind& drawn = kBlockKinds[kind];
  std::string text;
  for (size_t i = 0; i < count; ++i) {
    text += locale_is_utf8() ? drawn.utf8 : std::string(1, drawn.ascii);
  }
  return colour == Colour::kAlways
             ? fmt::format("\033[{}m{}\033[0m", drawn.colour, text)
             : text;
}

std::string drawn_row(const std::vector<size_t>& kinds, Colour colour) {
  std::string text;
  for (size_t begin = 0; begin < kinds.size();) {
    size_t end = begin;
    while (end < kinds.size() && kinds[end] == kinds[begin]) ++end;
    text += glyphs(kinds[begin], end - begin, colour);
    begin = end;
  }
  return text;
}

// Returns "0 ms     5        10", no wider than the row with its border.
std::string axis(double seconds, int columns) {
  std::string text;
  for (const double mark :
       marks_between(0, seconds, std::max(1, columns / kColumnsOfMark))) {
    const auto at = static_cast<size_t>(std::lround(mark / seconds * columns));
    const std::string label = mark_label(mark) + (text.empty() ? " ms" : "");
    if (at + label.size() > static_cast<size_t>(columns) + 1) break;
    if (text.size() < at) text.resize(at, ' ');
    text += label;
  }
  return text;
}

// Returns the legend, wrapped at `width` columns.
std::string legend(const TimeLine& line, size_t indent, size_t width,
                   Colour colour) {
  std::string text;
  size_t column = width;
  for (const size_t kind : line.kinds()) {
    const std::string name = kBlockKinds[kind].name;
    const size_t length = 4 + name.size();
    if (column + length > width) {
      text += (text.empty() ? "" : "\n") + std::string(indent, ' ');
      column = indent + length - 2;
    } else {
      text += "  ";
      column += length;
    }
    text += glyphs(kind, 1, colour) + " " + name;
  }
  return text + "\n";
}

}  // namespace

std::string to_text(const Comparison& comparison, Details details,
                    Colour colour, int width) {
  const auto columns = static_cast<size_t>(std::max(width, kMinColumns));
  const size_t prose = std::min(columns, kProseWidth);
  std::string text = bold(wrap(headline(comparison), columns), colour) + "\n" +
                     wrap(method(comparison), columns) + "\n";
  const bool has_details = details == Details::kAll;
  Section times = set_up_section(comparison);
  if (!has_details) keep_columns(times, kShortColumns);
  add(text, times, colour, columns);
  add(text, device_section(comparison), colour, columns);
  if (has_details) {
    add(text, phase_section(comparison, kBarWidth), colour, columns);
    add(text, limit_section(comparison, kBarWidth), colour, columns);
    for (const TimeLine& line : time_lines(comparison)) {
      text += "\n" + bold(wrap(line.title, columns), colour) + "\n" +
              to_text(line, static_cast<int>(columns), colour);
    }
    add(text, dp_against_ddp_section(comparison), colour, columns);
  }
  add(text, ratio_section(comparison), colour, columns);
  const auto sentences = reading(comparison);
  if (!sentences.empty()) {
    text += "\n" + bold("What this says", colour) + "\n";
    for (const auto& sentence : sentences) {
      text += wrap("- " + sentence, prose, 2) + "\n";
    }
  }
  if (!has_details) {
    text += "\n" +
            wrap(
                "--details also prints the phases of a step, its share of the "
                "limit and a time line; --html FILE has all of it.",
                prose) +
            "\n";
  }
  return text;
}

std::string to_text(const TimeLine& line, int width, Colour colour) {
  if (line.rows.empty() || line.seconds <= 0) return "";
  size_t labels = 0;
  for (const auto& row : line.rows) labels = std::max(labels, row.label.size());
  const bool is_utf8 = locale_is_utf8();
  const char* edge = is_utf8 ? "│" : "|";
  const int columns =
      std::max(kMinLaneWidth, width - static_cast<int>(labels) - 3);
  std::string text;
  for (const auto& row : line.rows) {
    text += fmt::format(
        "{:<{}} {}{}{}\n", row.label, labels, edge,
        drawn_row(columns_of(row.blocks, line.seconds, columns), colour), edge);
  }
  const std::string indent(labels + 2, ' ');
  text += indent + axis(line.seconds, columns) + "\n";
  return text + legend(line, indent.size(), static_cast<size_t>(width), colour);
}

}  // namespace lockstep::tools
