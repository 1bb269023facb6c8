#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/world.h"

namespace lockstep::train {

/// Ranks have other bits of what they should have alike.
struct Divergence {
  int64_t step = 0;                  ///< steps done
  std::vector<std::string> digests;  ///< by rank
  /// The ranks that differ from more than half of all; empty if no digest is
  /// that of so many.
  std::vector<int> wrong;
};

/// Thrown on all ranks: the run goes back to the last state that was alike.
class StateDiverged : public TrainError {
 public:
  explicit StateDiverged(const std::string& why)
      : TrainError({.code = ErrorCode::kParametersDiffer, .what = why}),
        why_(why) {}
  /// In words, without the error's component and code.
  const std::string& why() const { return why_; }

 private:
  std::string why_;
};

/// What a process remembers over the attempts of a run.
struct GuardHistory {
  std::optional<Divergence> last;
  std::vector<int> times_wrong;  ///< by rank
};

/// Finds a rank whose memory or processor changed a bit in silence: every so
/// many steps the ranks compare a digest of what all have alike.
///
/// The steps after the last common state are repeated. Since a run has the same
/// bits each time, their outcome says which rank was wrong, of two as well. A
/// rank that is wrong for the second time ends with an error, so that a
/// launcher replaces it.
class StateGuard {
 public:
  /// `every` 0: never.
  StateGuard(const World& world, int64_t every, GuardHistory& history);

  bool is_on() const { return every_ > 0; }
  bool is_due(int64_t step) const { return is_on() && step % every_ == 0; }
  /// With this rank's digest after `step` steps. Collective. Throws
  /// StateDiverged, and TrainError on a rank that is wrong again.
  void compare(int64_t step, const std::string& digest);
  /// After `step` steps: of the last one this rank computed `shards` wrong
  /// once, and their gradients were repaired. Throws TrainError if it was wrong
  /// before, so that it is replaced; not if it is alone.
  void note_repaired(int64_t step, const std::vector<int64_t>& shards);

 private:
  /// Throws TrainError on one of `ranks` that was among such before.
  void note_wrong(const std::vector<int>& ranks, int64_t step);
  void name_who_was_wrong(const Divergence& earlier, const std::string& digest);

  World world_;
  int64_t every_;
  GuardHistory& history_;
};

}  // namespace lockstep::train
