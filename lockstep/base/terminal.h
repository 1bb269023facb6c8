#pragma once

#include <string>
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
/// less than kLeastColumns.
int terminal_width(int fd);
inline constexpr int kLeastColumns = 20;
bool locale_is_utf8();

/// Notes that the last line on this process's terminal is unfinished, as a
/// progress bar is.
void note_unfinished_line();
/// Returns what to write to `fd` before a line of text: if it is a terminal,
/// the code that erases an unfinished line. Otherwise the line would be printed
/// onto its end.
std::string_view erase_unfinished_line(int fd);

/// Formats bytes: "1.2 GiB", "512 B".
std::string format_bytes(double bytes);
/// Formats a duration: "1.23 ms", "2 min 5 s".
std::string format_duration(double seconds);
/// Formats a range: "1.20-1.40 ms", with one unit if both have the same.
std::string format_durations(double low_s, double high_s);
/// Formats a count: "12,345,678".
std::string format_count(long long count);
/// Returns a count and its noun: "1 step", "2,000 steps".
std::string counted(long long count, std::string_view thing);
/// Returns a count and its noun with an irregular plural: "2 batches".
std::string counted(long long count, std::string_view thing,
                    std::string_view things);
/// Formats a loss or another metric: "0.1234", "4.139e+19". Uses four decimals,
/// or an exponent for numbers that are too large or too small for that.
std::string format_number(double value);

}  // namespace lockstep
