#include <cstdlib>

#include <fmt/format.h>

#include "lockstep/base/table.h"
#include "lockstep/base/terminal.h"
#include "lockstep/report/dp_against_ddp.h"
#include "lockstep/report/rendering.h"
#include "lockstep/report/sections.h"
#include "lockstep/report/time_line.h"

namespace lockstep::report {
namespace {

constexpr int kBarWidth = 4;
constexpr size_t kTextWidth = 80;

std::string bold(const std::string& text, Colour colour) {
  return colour == Colour::kAlways ? "\033[1m" + text + "\033[0m" : text;
}

void add(std::string& text, const Section& section, Colour colour) {
  if (section.rows.empty()) return;
  Table table(section.header);
  // The names of devices stand beside those of the runs.
  if (section.header.size() > 1 && section.header[1] == "Device") {
    table.align({Align::kLeft, Align::kLeft, Align::kRight, Align::kRight,
                 Align::kRight});
  }
  for (size_t row = 0; row < section.rows.size(); ++row) {
    const bool starts_run = !section.rows[row].front().empty();
    const bool is_grouped = section.header[1] == "Device";
    if (row > 0 && starts_run && is_grouped) table.add_rule();
    table.add_row(section.rows[row]);
  }
  text += "\n" + bold(section.title, colour) + "\n" + table.render();
}

// Breaks `sentence` at spaces, as one item of a list.
std::string wrapped(const std::string& sentence) {
  std::string result = "- ";
  size_t column = 2;
  for (size_t start = 0; start < sentence.size();) {
    const size_t end = std::min(sentence.find(' ', start), sentence.size());
    const std::string word = sentence.substr(start, end - start);
    start = end + 1;
    if (word.empty()) continue;
    if (column > 2 && column + 1 + display_width(word) > kTextWidth) {
      result += "\n  ";
      column = 2;
    } else if (column > 2) {
      result += ' ';
      ++column;
    }
    result += word;
    column += display_width(word);
  }
  return result + "\n";
}

}  // namespace

Colour colour_of(int fd) {
  const char* no_colour = std::getenv("NO_COLOR");
  const bool is_refused = no_colour != nullptr && *no_colour != '\0';
  return is_terminal(fd) && !is_refused ? Colour::kAlways : Colour::kNever;
}

std::string to_text(const Comparison& comparison, Colour colour, int width) {
  std::string text =
      bold(headline(comparison), colour) + "\n" + method(comparison) + "\n";
  add(text, set_up_section(comparison), colour);
  add(text, device_section(comparison), colour);
  add(text, phase_section(comparison, kBarWidth), colour);
  for (const TimeLine& line : time_lines(comparison)) {
    text +=
        "\n" + bold(line.title, colour) + "\n" + to_text(line, width, colour);
  }
  add(text, dp_against_ddp_section(comparison), colour);
  add(text, ratio_section(comparison), colour);
  const auto sentences = reading(comparison);
  if (!sentences.empty()) {
    text += "\n" + bold("What this says", colour) + "\n";
    for (const auto& sentence : sentences) text += wrapped(sentence);
  }
  return text;
}

}  // namespace lockstep::report
