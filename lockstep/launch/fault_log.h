#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "lockstep/launch/failure.h"

namespace lockstep::launch {

/// What has failed, and was survived or not.
class FaultLog {
 public:
  /// The attempt that began at `began_s` ended at `root`, or for `why` if that
  /// is unknown here. Times are seconds since 1970.
  void add(const Failure* root, const std::string& why, double began_s);
  /// The next attempt has begun: the last one is survived.
  void recovered(double time_s);

  /// How long to wait before the next attempt: nothing after one that lasted,
  /// then 1, 2, 4 ... 30 s while they fail at once.
  double delay_s() const;
  /// A line for each that was survived: when, who, why, and what it cost. ""
  /// for none.
  std::string text() const;

 private:
  struct Fault {
    double time_s = 0;
    double lasted_s = 0;    // the attempt that it ended
    double downtime_s = 0;  // until the next one
    std::string who;
    std::string why;
  };
  int quick_in_a_row() const;

  size_t survived_ = 0;  // the first so many
  std::vector<Fault> faults_;
};

}  // namespace lockstep::launch
