#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/train/options.h"

namespace lockstep::train {

/// A difference between ranks in the bits that they should have in common.
struct Divergence {
  int64_t step = 0;                  ///< steps done
  std::vector<std::string> digests;  ///< by rank
  /// Ranks that differ from the majority; empty if no digest is shared by more
  /// than half of the ranks.
  std::vector<int> wrong;
};

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

/// Data that a process remembers over the attempts of a run.
struct GuardHistory {
  std::optional<Divergence> last;
  std::vector<int> times_wrong;  ///< by rank
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
/// ranks. A rank that is wrong for the second time ends with an error, so that
/// a launcher replaces it.
class StateGuard {
 public:
  /// `every`: number of steps between comparisons; 0: never.
  StateGuard(const ProcessGroup& world, int64_t every, GuardHistory& history);

  bool is_on() const { return every_ > 0; }
  bool is_due(int64_t step) const { return is_on() && step % every_ == 0; }
  /// Compares this rank's digest after `step` steps with the others.
  /// Collective. Throws StateDiverged, and TrainError on a rank that is wrong
  /// again.
  void compare(int64_t step, const std::string& digest);
  /// Notes that this rank computed the gradients of `shards` wrong once in the
  /// last of `step` steps, and that they were repaired. Throws TrainError, so
  /// that the rank is replaced, if it was wrong before and is not the only
  /// rank.
  void note_repaired(int64_t step, const std::vector<int64_t>& shards);

 private:
  /// Throws TrainError on a rank in `ranks` that was wrong before.
  void note_wrong(const std::vector<int>& ranks, int64_t step);
  void name_who_was_wrong(const Divergence& earlier, const std::string& digest);

  ProcessGroup world_;
  int64_t every_;
  GuardHistory& history_;
};

}  // namespace lockstep::train
