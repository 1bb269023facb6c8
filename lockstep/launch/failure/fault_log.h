#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/launch/failure/failure.h"

namespace lockstep::launch {

/// How an attempt ended. Seconds are of the steady clock.
struct AttemptEnd {
  const Failure* root = nullptr;  ///< null: not known here
  std::string why{};              ///< said then
  bool is_node_lost = false;
  double began_s = 0;
  double failed_s = 0;
  std::optional<uint64_t> steps{};  ///< done, of a program that tells
};

/// What has failed, and was survived or not.
class FaultLog {
 public:
  void add(const AttemptEnd& end);
  /// The next attempt has begun, by the steady clock: the last one is survived.
  void recovered(double now_s);
  /// The program's steps go on, from this one: also in the first attempt.
  void went_on(double now_s, uint64_t steps);

  /// How long to wait before the next attempt: nothing after one that lasted
  /// or got on, then 1, 2, 4 ... 30 s while they fail at once.
  double delay_s() const;
  /// Whether it failed after the same step so often that it always will: the
  /// cause is in the program or its data, and not in the machine. A process
  /// that was killed from outside, and a node that was lost, say nothing of the
  /// program: they don't count.
  bool is_stuck() const;
  /// For who asks why there is no restart.
  std::string why_stuck() const;
  /// A line for each that was survived: when, who, why, and what it cost. ""
  /// for none.
  std::string text() const;

 private:
  struct Fault {
    double time_s = 0;      // since 1970
    double failed_s = 0;    // the same by the steady clock
    double lasted_s = 0;    // the attempt that it ended
    double downtime_s = 0;  // until the next one
    std::string who;
    std::string why;
    std::optional<uint64_t> steps{};     // done
    std::optional<uint64_t> repeated{};  // of these
    bool got_on = false;
    bool is_programs = true;  // as far as can be seen
  };
  int quick_in_a_row() const;

  size_t survived_ = 0;                 // the first so many
  std::optional<uint64_t> first_step_;  // of this attempt
  std::vector<Fault> faults_;
};

}  // namespace lockstep::launch
