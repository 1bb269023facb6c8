#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/train/state/resume.h"
#include "lockstep/train/state/stateful.h"

namespace lockstep::training {

/// The owner of a state.
enum class StateOf {
  kRun,   ///< the same on every rank; saved once
  kRank,  ///< a different one on each rank; saved with the prefix "rank.<i>."
};

enum class LoadCallbacks { kYes, kNo };

/// The parts of a run that have state, each with the prefix of its entries in a
/// checkpoint. The order of the parts is the order of the collective calls.
///
/// Only the optimizer has no prefix. The other names are part of the format of
/// checkpoints, so they can't change.
class StateList {
 public:
  static constexpr const char* kOptimizer = "";
  static constexpr const char* kOuterStep = "outer_step.";
  static constexpr const char* kPowerSgd = "powersgd.";
  static constexpr const char* kLossScaler = "loss_scaler.";
  static constexpr const char* kSpikes = "spikes.";
  /// Followed by the position of the callback: "callback.0.".
  static constexpr const char* kCallback = "callback.";

  explicit StateList(const ProcessGroup& world) : world_(world) {}

  /// `part` must outlive this object.
  void add(std::string prefix, Stateful& part, StateOf of = StateOf::kRun);

  /// Returns the entries of all parts. Collective.
  OptimizerState state() const;
  /// Loads the state that the ranks with access to `resumed` read for all. If
  /// the settings of the run have changed, a part besides the optimizer may
  /// have other entries than were saved. It keeps the values of the entries
  /// that are missing. A callback gets all entries that were saved for it, also
  /// those that its state() does not have yet. Rank 0 warns of entries that no
  /// callback takes. Collective.
  void load(const Resume& resumed, LoadCallbacks callbacks);

 private:
  struct Part {
    std::string prefix;
    Stateful* part;
    StateOf of;
  };

  /// Returns state() as it is in a run of `ranks` ranks.
  OptimizerState state_of_ranks(int64_t ranks) const;
  /// Returns the entries that were saved, on every rank.
  OptimizerState read(const Resume& resumed, int64_t ranks) const;
  void load_part(const Part& part, const OptimizerState& entries,
                 int64_t ranks) const;
  /// Rank 0 warns of the entries of callbacks that none of them has now.
  void warn_of_dropped(const OptimizerState& entries) const;

  ProcessGroup world_;
  std::vector<Part> parts_;
};

}  // namespace lockstep::training
