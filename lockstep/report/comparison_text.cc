#include "lockstep/report/comparison_text.h"

#include <algorithm>

#include "lockstep/base/table.h"
#include "lockstep/base/terminal.h"
#include "lockstep/base/text.h"
#include "lockstep/report/comparison/time_line.h"
#include "lockstep/report/tables/comparison_sections.h"

namespace lockstep::report {
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

}  // namespace

std::string to_text(const Comparison& comparison, Colour colour, int width) {
  const auto columns = static_cast<size_t>(std::max(width, kLeastColumns));
  const size_t prose = std::min(columns, kProseWidth);
  std::string text = bold(wrap(headline(comparison), columns), colour) + "\n" +
                     wrap(method(comparison), columns) + "\n";
  add(text, set_up_section(comparison), colour, columns);
  add(text, device_section(comparison), colour, columns);
  add(text, phase_section(comparison, kBarWidth), colour, columns);
  for (const TimeLine& line : time_lines(comparison)) {
    text += "\n" + bold(wrap(line.title, columns), colour) + "\n" +
            to_text(line, static_cast<int>(columns), colour);
  }
  add(text, dp_against_ddp_section(comparison), colour, columns);
  add(text, ratio_section(comparison), colour, columns);
  const auto sentences = reading(comparison);
  if (!sentences.empty()) {
    text += "\n" + bold("What this says", colour) + "\n";
    for (const auto& sentence : sentences) {
      text += wrap("- " + sentence, prose, 2) + "\n";
    }
  }
  return text;
}

}  // namespace lockstep::report
