#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <typeindex>

#include "lockstep/base/error.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/replicas/data_parallel_options.h"

namespace lockstep {

/// State of a check that the first step makes.
enum class StepCheck {
  kPending,     ///< not made yet
  kPassed,      ///< made, and no problem was found
  kImpossible,  ///< can't be made for this module or loss; a warning said why
  kOff,         ///< switched off
};

/// Returns "pending", "passed", "impossible" or "off".
std::string to_string(StepCheck check);

/// Makes the checks of the first step. The first step after a module is
/// wrapped, and after all replicas were recreated, compares a replica with the
/// module itself (ModuleComparison). The first step with a loss function
/// compares the shards' losses with the loss of all samples together
/// (check_loss_is_mean).
///
/// With several ranks, the checks are collective and have one outcome.
class FirstStep {
 public:
  /// `warns`: whether this rank logs a warning if a check can't be made.
  FirstStep(bool is_on, bool warns);

  StepCheck module() const { return module_; }
  StepCheck loss() const { return loss_; }
  /// Returns the reason for the first outcome that is kImpossible, or "".
  const std::string& reason() const { return reason_; }

  /// Returns whether the replicas made by build number `build` have to be
  /// compared. `has_gradients` says whether the step also computes gradients.
  bool compares_module(int64_t build, bool has_gradients) const;
  /// Returns whether the losses of `loss` have to be compared.
  bool compares_loss(const ShardLoss& loss) const;

  /// Result of one check in a step.
  struct Outcome {
    StepCheck check = StepCheck::kPending;
    std::string reason{};  ///< reason for kImpossible
  };
  /// Results of both checks on a rank.
  struct Findings {
    std::optional<Problem> problem;
    Outcome module;
    Outcome loss;
  };
  /// Returns whether `one` is true on any rank of `world`. Collective.
  static bool any(const ProcessGroup& world, bool one);
  /// Combines the findings of all ranks of `world`: the problem of the first
  /// rank that has one, kImpossible if a rank can't make a check, and kPending
  /// if a rank could not decide yet. Collective.
  static void agree(const ProcessGroup& world, Findings& findings);
  /// Records the outcome of the comparison of replicas of `build`, and warns
  /// once if it can't be made.
  void note_module(const Outcome& outcome, int64_t build, bool has_gradients);
  void note_loss(const Outcome& outcome, const ShardLoss& loss);

 private:
  void warn(const char* what, const Outcome& outcome);

  bool warns_;
  StepCheck module_ = StepCheck::kPending;
  StepCheck loss_ = StepCheck::kPending;
  std::string reason_;
  int64_t build_ = -1;  // build of the replicas that were compared
  bool has_compared_gradients_ = false;
  std::set<std::type_index> losses_;  // types of the losses that were compared
};

}  // namespace lockstep
