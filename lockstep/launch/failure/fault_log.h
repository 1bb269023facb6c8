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
  const Failure* root = nullptr;  ///< null: unknown on this node
  std::string why{};              ///< the reason that was reported
  bool is_node_lost = false;
  double began_s = 0;
  double failed_s = 0;
  std::optional<uint64_t> steps{};  ///< done, if the program reports steps
};

/// The failures of a job, and which of them it survived.
class FaultLog {
 public:
  void add(const AttemptEnd& end);
  /// The next attempt has begun at `now_s` (steady clock): the job survived the
  /// last failure.
  void recovered(double now_s);
  /// The program has begun to train at step `steps`. Also called in the first
  /// attempt.
  void began_training(double now_s, uint64_t steps);

  /// How long to wait before the next attempt: 0 after an attempt that lasted
  /// or made progress, then 1, 2, 4 ... 30 s while attempts fail quickly one
  /// after another.
  double delay_s() const;
  /// Whether the program failed so many times after the same step that another
  /// restart is useless: the cause is in the program or its data, and not in
  /// the machine. Processes that were killed from outside and nodes that were
  /// lost do not count, because they say nothing about the program.
  bool is_stuck() const;
  /// The message that says why there is no restart.
  std::string why_stuck() const;
  /// A line for each failure that was survived: when, which rank, why, and what
  /// it cost. "" if there was none.
  std::string text() const;

 private:
  struct Fault {
    double time_s = 0;      // since 1970
    double failed_s = 0;    // the same moment, steady clock
    double lasted_s = 0;    // of the attempt that failed
    double downtime_s = 0;  // until the next attempt
    std::string who;
    std::string why;
    std::optional<uint64_t> steps{};     // done
    std::optional<uint64_t> repeated{};  // of them, done again
    bool made_progress = false;
    bool is_of_program =
        true;  // the program's own fault, as far as can be seen
  };
  int quick_in_a_row() const;

  size_t survived_ = 0;                 // how many, from the first on
  std::optional<uint64_t> first_step_;  // of this attempt
  std::vector<Fault> faults_;
};

}  // namespace lockstep::launch
