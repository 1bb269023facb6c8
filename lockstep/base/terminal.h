#pragma once

#include <string>
#include <string_view>

namespace lockstep {

bool is_terminal(int fd);
/// Whether text to `fd` has colours: to a terminal, unless NO_COLOR is set
/// (no-color.org).
bool wants_colour(int fd);
/// Columns of the terminal at `fd`. Where there is no terminal, the number in
/// the variable COLUMNS, or 80 without one. Never less than kLeastColumns.
int terminal_width(int fd);
inline constexpr int kLeastColumns = 20;
bool locale_is_utf8();

/// "1.2 GiB", "512 B".
std::string format_bytes(double bytes);
/// "1.23 ms", "2 min 5 s".
std::string format_duration(double seconds);
/// "1.20-1.40 ms", with the unit once where both have the same.
std::string format_durations(double low_s, double high_s);
/// "12,345,678".
std::string format_count(long long count);
/// "1 step", "2,000 steps".
std::string counted(long long count, std::string_view thing);
/// "1 batch", "2 batches".
std::string counted(long long count, std::string_view thing,
                    std::string_view things);
/// "0.1234", "4.139e+19": a loss or another metric. Four decimals, but for a
/// number that is too large or too small to be read in that form.
std::string format_number(double value);

}  // namespace lockstep
