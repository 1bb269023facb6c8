#include "lockstep/tools/top/terminal_screen.h"

#include <clocale>
// ncurses' macros have names such as erase and move.
#define NCURSES_NOMACROS
#include <curses.h>
#include <unistd.h>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/terminal.h"

namespace lockstep::cli {
namespace {

using monitor::Style;

constexpr short kGreen = 1, kYellow = 2, kRed = 3;

attr_t attributes_of(Style style) {
  const auto color = [](short pair) {
    return has_colors() ? static_cast<attr_t>(COLOR_PAIR(pair)) : A_NORMAL;
  };
  switch (style) {
    case Style::kPlain:
      return A_NORMAL;
    case Style::kDim:
      return A_DIM;
    case Style::kBold:
      return A_BOLD;
    case Style::kHeading:
      return A_UNDERLINE;
    case Style::kGood:
      return color(kGreen);
    case Style::kWarning:
      return color(kYellow) | A_BOLD;
    case Style::kBad:
      return color(kRed) | A_BOLD;
  }
  return A_NORMAL;
}

[[noreturn]] void refuse(const std::string& what, const std::string& got) {
  throw IoError({.code = ErrorCode::kBadOption,
                 .what = what,
                 .expected = "a terminal that can move its cursor",
                 .got = got,
                 .fix = "use --once for a look at it, --json for scripts"});
}

}  // namespace

TerminalScreen::TerminalScreen() {
  if (!is_terminal(STDOUT_FILENO) || !is_terminal(STDIN_FILENO)) {
    refuse("a live view needs a terminal", "a file or a pipe");
  }
  std::setlocale(LC_CTYPE, "");
  // newterm() is used because initscr() would end the process on failure.
  if (newterm(nullptr, stdout, stdin) == nullptr) {
    refuse("this kind of terminal is not known",
           "TERM=" + env("TERM").value_or(""));
  }
  cbreak();
  noecho();
  keypad(stdscr, TRUE);
  curs_set(0);
  set_escdelay(25);
  if (has_colors()) {
    start_color();
    use_default_colors();
    init_pair(kGreen, COLOR_GREEN, -1);
    init_pair(kYellow, COLOR_YELLOW, -1);
    init_pair(kRed, COLOR_RED, -1);
  }
}

TerminalScreen::~TerminalScreen() { endwin(); }

int TerminalScreen::width() const { return getmaxx(stdscr); }
int TerminalScreen::height() const { return getmaxy(stdscr); }

void TerminalScreen::show(const std::vector<monitor::ScreenLine>& lines) {
  erase();
  int row = 0;
  for (const auto& line : lines) {
    move(row++, 0);
    for (const auto& piece : line) {
      attrset(static_cast<int>(attributes_of(piece.style)));
      addstr(piece.text.c_str());
    }
  }
  attrset(A_NORMAL);
  refresh();
}

TerminalScreen::Key TerminalScreen::read_key(
    std::chrono::milliseconds timeout) {
  wtimeout(stdscr, static_cast<int>(timeout.count()));
  switch (getch()) {
    case 'q':
    case 'Q':
    case 27:  // escape
      return Key::kQuit;
    case KEY_UP:
    case 'k':
      return Key::kUp;
    case KEY_DOWN:
    case 'j':
      return Key::kDown;
    case '\t':
      return Key::kNext;
    case KEY_RESIZE:
      return Key::kResized;
    default:
      return Key::kNone;
  }
}

}  // namespace lockstep::cli
