#pragma once

#include <string_view>

namespace lockstep {

/// Returns whether `fd` leads to a terminal. In ranks of Open MPI it does not:
/// mpirun gives them a pseudo-terminal, whatever its own output leads to.
bool is_terminal(int fd);
/// Returns whether output to `fd` should have colours: if it is a terminal and
/// NO_COLOR is not set (no-color.org).
bool wants_colour(int fd);
/// Returns the number of columns of the terminal at `fd`. Without a terminal,
/// returns the value of the variable COLUMNS, or 80 if it is not set. Never
/// less than kMinColumns.
int terminal_width(int fd);
inline constexpr int kMinColumns = 20;
bool locale_is_utf8();

/// Notes that the last line on this process's terminal is unfinished, as a
/// progress bar is.
void note_unfinished_line();
/// Returns what to write to `fd` before a line of text: if it is a terminal,
/// the code that erases an unfinished line. Otherwise the line would be printed
/// onto its end.
std::string_view erase_unfinished_line(int fd);

}  // namespace lockstep
