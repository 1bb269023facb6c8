#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <typeindex>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/world.h"
#include "lockstep/parallel/replicas/data_parallel_options.h"

namespace lockstep {

/// State of a check that the first step makes.
enum class StepCheck {
  kPending,     ///< not made yet
  kPassed,      ///< made, and nothing was found
  kImpossible,  ///< can't be made for this module or loss; a warning said why
  kOff,         ///< switched off
};

/// "pending", "passed", "impossible" or "off".
std::string to_string(StepCheck check);

/// The checks of the first step. The first step after a wrap, and after
/// anything that makes the replicas anew, compares a replica with the module
/// itself (ModuleComparison). The first step with a loss function compares the
/// shards' losses with the loss of all samples together (check_loss_is_mean).
///
/// On several ranks the checks are collective, and have one outcome.
class FirstStep {
 public:
  /// `warns`: whether this rank says so if a check can't be made.
  FirstStep(bool is_on, bool warns);

  StepCheck module() const { return module_; }
  StepCheck loss() const { return loss_; }
  /// The reason for the first outcome that is kImpossible. "": no outcome is.
  const std::string& reason() const { return reason_; }

  /// Returns true if the replicas that were made by build number `build` have
  /// to be compared. `has_gradients` is true if the step also computes
  /// gradients.
  bool compares_module(int64_t build, bool has_gradients) const;
  /// Returns true if the losses of `loss` have to be compared.
  bool compares_loss(const ShardLoss& loss) const;

  /// The result of one check in a step.
  struct Outcome {
    StepCheck check = StepCheck::kPending;
    std::string reason{};  ///< why it is kImpossible
  };
  /// The results of both checks on a rank.
  struct Findings {
    std::optional<Problem> problem;
    Outcome module;
    Outcome loss;
  };
  /// Returns true if `one` is true on any rank of `world`. Collective.
  static bool any(const World& world, bool one);
  /// Makes the findings of all ranks of `world` those of this rank: the problem
  /// of the first rank that has one, kImpossible if a rank can't make a check,
  /// and kPending if a rank could not decide yet. Collective.
  static void agree(const World& world, Findings& findings);
  /// Notes the outcome of the comparison of replicas of `build`, and warns once
  /// if it can't be made.
  void note_module(const Outcome& outcome, int64_t build, bool has_gradients);
  void note_loss(const Outcome& outcome, const ShardLoss& loss);

 private:
  void warn(const char* what, const Outcome& outcome);

  bool warns_;
  StepCheck module_ = StepCheck::kPending;
  StepCheck loss_ = StepCheck::kPending;
  std::string reason_;
  int64_t build_ = -1;  // of the replicas that were compared
  bool has_compared_gradients_ = false;
  std::set<std::type_index> losses_;  // that were compared
};

}  // namespace lockstep
