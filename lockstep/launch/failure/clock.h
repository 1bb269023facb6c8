#pragma once

#include <string>

namespace lockstep::launch {

/// Returns the seconds since 1970, for comparison with times that other
/// programs wrote.
double unix_time_s();

/// A moment on two clocks. The wall clock may be set at any time, so durations
/// and the order of events on this node come from the steady clock.
struct Moment {
  double steady_s = 0;
  double unix_s = 0;  ///< for people and other programs

  static Moment now();
};

/// Returns "2026-01-31 12:00:00.250" in the local time zone.
std::string local_time(double time_s);

}  // namespace lockstep::launch
