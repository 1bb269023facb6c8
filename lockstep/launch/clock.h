#pragma once

#include <string>

namespace lockstep::launch {

/// Seconds since 1970: to be compared with what other programs wrote.
double unix_time_s();

/// "2026-01-31 12:00:00.250" in the local zone.
std::string local_time(double time_s);

}  // namespace lockstep::launch
