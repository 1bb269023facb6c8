#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/train/train_options.h"

namespace lockstep::training {

/// Thrown on all ranks. The run goes back to the last common state.
class StateDiverged : public TrainError {
 public:
  explicit StateDiverged(const std::string& why)
      : TrainError({.code = ErrorCode::kParametersDiffer, .what = why}),
        why_(why) {}
  /// Returns the reason, without the error's component and code.
  const std::string& why() const { return why_; }

 private:
  std::string why_;
};

/// Data that a process remembers over the attempts of a run. Its rank may be
/// another one in each attempt.
struct GuardHistory {
  /// The digest of this process after a step.
  struct State {
    int64_t step = 0;
    std::string digest;
  };
  std::optional<State> different;  ///< where ranks differed, until it is known
                                   ///< which rank was wrong
  std::optional<State> common;     ///< where the ranks were last equal
  int times_wrong = 0;             ///< how often this process was wrong

  // The same on all ranks.
  int64_t farthest = -1;      ///< largest step after which ranks differed
  int returns = 0;            ///< differences since that step was last passed
  int64_t watched_until = 0;  ///< each step is compared until then
};

/// Returns the number of steps between two comparisons of the ranks' common
/// state. Returns 0 if there is nothing to compare, because the ranks share one
/// copy in memory.
int64_t steps_between_comparisons(const TrainOptions& options,
                                  const ProcessGroup& world);

/// Finds a rank whose memory or processor silently changed a bit: at regular
/// steps the ranks compare a digest of the state that they should have in
/// common.
///
/// The steps after the last common state are repeated. Since a run has the same
/// bits each time, their outcome shows which rank was wrong, even with two
/// ranks, if the others were still right. They are not if the bit changed some
/// steps ago: the next gradients carry the change to all ranks. Then no rank is
/// blamed, and each step is compared for a while, so that a rank which is wrong
/// again is found at once.
///
/// A rank that is wrong for the second time ends with an error, so that a
/// launcher replaces it.
class StateGuard {
 public:
  /// `every`: number of steps between comparisons; 0: never. Collective,
  /// because a process that replaced another one does not know what the others
  /// have seen.
  StateGuard(const ProcessGroup& world, int64_t every, GuardHistory& history);

  bool is_on() const { return every_ > 0; }
  /// Returns the same on all ranks.
  bool is_due(int64_t step) const;
  /// Compares this rank's digest after `step` steps with the others.
  /// Collective. Throws StateDiverged, and TrainError on a rank that is wrong
  /// again. Throws TrainError on all ranks if the run went back many times
  /// without making progress.
  void compare(int64_t step, const std::string& digest);
  /// Notes that this rank computed the gradients of `shards` wrong once in the
  /// last of `step` steps, and that they were repaired. Throws TrainError, so
  /// that the rank is replaced, if it was wrong before and is not the only
  /// rank.
  void note_repaired(int64_t step, const std::vector<int64_t>& shards);

 private:
  /// The knowledge of all ranks about the state after a step. Digests are by
  /// rank.
  struct Evidence {
    std::vector<std::string> digests;
    /// Digests when the ranks differed after the same step; "" if unknown.
    std::vector<std::string> earlier;
    /// The digest of all ranks when they were equal here; "" if unknown.
    std::string right;
  };

  Evidence gather(int64_t step, const std::string& digest) const;
  /// Says which rank was wrong when the ranks differed after this step, now
  /// that they are equal.
  void explain(int64_t step, const Evidence& evidence);
  [[noreturn]] void go_back(int64_t step, const Evidence& evidence);
  /// Throws TrainError if this rank is `rank` and was wrong before.
  void blame(int rank, int64_t step);

  ProcessGroup world_;
  int64_t every_;
  GuardHistory& history_;
  int64_t repeated_ = -1;  // step after which ranks differed, on any rank
};

}  // namespace lockstep::training
