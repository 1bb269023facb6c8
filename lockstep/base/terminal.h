#pragma once

#include <string>

namespace lockstep {

bool is_terminal(int fd);
/// Columns of the terminal at `fd`; 80 where there is none.
int terminal_width(int fd);
bool locale_is_utf8();

/// "1.2 GiB", "512 B".
std::string format_bytes(double bytes);
/// "1.23 ms", "2 min 5 s".
std::string format_duration(double seconds);
/// "12,345,678".
std::string format_count(long long count);

}  // namespace lockstep
