#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/launch/failure.h"

namespace lockstep::launch {

/// What has failed, and was survived or not.
class FaultLog {
 public:
  /// The attempt that began at `began_s` ended at `root`, or for `why` if that
  /// is unknown here, after so many steps of the program if it tells them.
  /// Times are seconds since 1970.
  void add(const Failure* root, const std::string& why, double began_s,
           std::optional<uint64_t> steps = {});
  /// The next attempt has begun: the last one is survived.
  void recovered(double time_s);
  /// The program's steps go on, from this one: also in the first attempt.
  void went_on(double time_s, uint64_t steps);

  /// How long to wait before the next attempt: nothing after one that lasted
  /// or got on, then 1, 2, 4 ... 30 s while they fail at once.
  double delay_s() const;
  /// Whether it failed after the same step so often that it always will: the
  /// cause is in the program or its data, and not in the machine.
  bool is_stuck() const;
  /// For who asks why there is no restart.
  std::string why_stuck() const;
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
    std::optional<uint64_t> steps{};     // done
    std::optional<uint64_t> repeated{};  // of these
    bool got_on = false;
  };
  int quick_in_a_row() const;

  size_t survived_ = 0;                 // the first so many
  std::optional<uint64_t> first_step_;  // of this attempt
  std::vector<Fault> faults_;
};

}  // namespace lockstep::launch
