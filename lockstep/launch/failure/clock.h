#pragma once

#include <string>

namespace lockstep::launch {

/// Seconds since 1970: to be compared with what other programs wrote.
double unix_time_s();

/// A moment, by two clocks. Somebody may set the one that tells the time, so
/// durations, and what came first on this node, are told by the other.
struct Moment {
  double steady_s = 0;
  double unix_s = 0;  ///< to be shown, and for other programs

  static Moment now();
};

/// "2026-01-31 12:00:00.250" in the local zone.
std::string local_time(double time_s);

}  // namespace lockstep::launch
