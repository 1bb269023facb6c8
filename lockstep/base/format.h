#pragma once

#include <string>
#include <string_view>

// Numbers, written for people.

namespace lockstep {

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
