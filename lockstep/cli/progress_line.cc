#include "lockstep/cli/progress_line.h"

#include <cmath>
#include <cstdio>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/format.h"
#include "lockstep/base/terminal.h"
#include "lockstep/base/text.h"

namespace lockstep::cli {
namespace {

constexpr double kSecondsBetweenLines = 10;

}  // namespace

ProgressLine::ProgressLine(std::string component)
    : begin_("[" + std::move(component) + "] "),
      is_on_terminal_(is_terminal(STDERR_FILENO)) {}

void ProgressLine::show(std::string_view text) {
  if (!is_on_terminal_) {
    if (since_line_.seconds() >= kSecondsBetweenLines) say(text);
    return;
  }
  erase();
  fmt::print(stderr, "{}{} ...", begin_, text);
  std::fflush(stderr);
  has_line_ = true;
  note_unfinished_line();
}

void ProgressLine::say(std::string_view text) {
  erase();
  since_line_.restart();
  const std::string line = begin_ + std::string(text);
  const auto width = static_cast<size_t>(terminal_width(STDERR_FILENO));
  fmt::print(stderr, "{}\n", is_on_terminal_ ? wrap(line, width, 2) : line);
  std::fflush(stderr);
}

void ProgressLine::erase() {
  if (has_line_) fmt::print(stderr, "\r\033[K");
  has_line_ = false;
}

std::string time_left_text(int64_t done, int64_t total, double seconds) {
  if (done == 0) return "";
  const double left =
      seconds * static_cast<double>(total - done) / static_cast<double>(done);
  return fmt::format(" | {} left", left < 59.5 ? fmt::format("{:.0f} s", left)
                                               : format_duration(left));
}

}  // namespace lockstep::cli
