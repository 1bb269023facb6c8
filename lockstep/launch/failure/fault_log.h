#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/launch/failure/failure.h"

namespace lockstep::launch {

/// Description of how an attempt ended. Seconds are on the steady clock.
struct AttemptEnd {
  const Failure* root = nullptr;  ///< null: unknown on this node
  std::string why{};              ///< the reason that was reported
  bool is_node_lost = false;
  double began_s = 0;
  double failed_s = 0;
  std::optional<uint64_t> steps{};  ///< steps done, if the program reports them
};

/// The failures of a job, with those that the job survived.
class FaultLog {
 public:
  void add(const AttemptEnd& end);
  /// Notes that the next attempt began at `now_s` (steady clock), which means
  /// that the job survived the last failure.
  void recovered(double now_s);
  /// Notes that the program began to train at step `steps`. Also called in the
  /// first attempt.
  void began_training(double now_s, uint64_t steps);

  /// Returns the time to wait before the next attempt: 0 after an attempt that
  /// lasted long or made progress, then 1, 2, 4 ... 30 s while successive
  /// attempts fail quickly.
  double delay_s() const;
  /// Returns true if the program failed so many times after the same step that
  /// another restart is useless, because the cause is in the program or its
  /// data rather than in the machine. Processes that were killed from outside
  /// and nodes that were lost do not count, because they say nothing about the
  /// program.
  bool is_stuck() const;
  /// Returns the message that says why there is no restart.
  std::string why_stuck() const;
  /// Returns a line for each failure that the job survived: when, which rank,
  /// why, and its cost. Returns "" if there were no failures.
  std::string text() const;

 private:
  struct Fault {
    double time_s = 0;      // since 1970
    double failed_s = 0;    // the same moment, steady clock
    double lasted_s = 0;    // duration of the attempt that failed
    double downtime_s = 0;  // time until the next attempt
    std::string who;
    std::string why;
    std::optional<uint64_t> steps{};     // steps done
    std::optional<uint64_t> repeated{};  // steps that had to be repeated
    bool made_progress = false;
    bool is_of_program = true;  // probably the program's own fault
  };
  int quick_in_a_row() const;

  size_t survived_ = 0;  // number of survived failures, from the first on
  std::optional<uint64_t> first_step_;  // first step of this attempt
  std::vector<Fault> faults_;
};

}  // namespace lockstep::launch
