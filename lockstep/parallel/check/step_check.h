#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <typeindex>
#include <vector>

#include <ATen/core/ivalue.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/group/data_parallel_options.h"
#include "lockstep/parallel/step/step_attachment.h"
#include "lockstep/parallel/trial/findings.h"
#include "lockstep/parallel/trial/module_comparison.h"
#include "lockstep/parallel/trial/trial.h"

namespace lockstep {

/// Proves before a step that it computes what it is meant to compute: that a
/// replica computes what the module itself does (ModuleComparison), and that
/// the loss of the batch is the mean, or the sum, of the shards' losses
/// (check_loss_is_mean()).
///
/// The proof of the first step, after the module is wrapped and after a
/// rebuild(), uses whole shards. A loss function is checked in the first step
/// that has it. With Verify::kDoubling, the steps 2, 4, 8, ... are checked
/// again with two samples of each shard: outputs and losses, and in every other
/// of these steps also gradients. This finds what a program changes
/// later and no wrapper can see: a member of a submodule, an element of a
/// vector, the weighting of a loss.
///
/// With several ranks, the checks are collective and have one outcome.
class StepCheck final : public StepAttachment {
 public:
  /// `warns`: whether this rank logs a warning if a check can't be made.
  StepCheck(Verify when, bool warns);

  /// Makes the checks that are due. Throws ParallelError that names the first
  /// output, buffer or gradient that differs, or says how the loss does.
  void before_step(const StepContext& step) override;
  /// Compares a replica before a forward of a user's loop. Not collective.
  /// A forward in training mode that makes a graph counts as a step.
  void before_forward(const ForwardContext& forward) override;
  /// Makes the next step check again, unless that is switched off
  /// (Verify::kDoubling). With several ranks, each has to call it.
  void verify_next_step() override { checks_next_ = true; }
  void describe(StepCheckReport& report) const override;

 private:
  enum class Due { kNot, kAgain, kFirst };
  /// A check that is made again and again.
  struct Schedule {
    CheckState state = CheckState::kPending;
    int64_t steps = 0;      // steps so far
    int64_t passed_at = 0;  // number of the last step that passed the check
  };
  /// The checks of one step.
  struct Checks {
    Due module = Due::kNot;
    Due loss = Due::kNot;
    bool any() const { return module != Due::kNot || loss != Due::kNot; }
    bool any_first() const {
      return module == Due::kFirst || loss == Due::kFirst;
    }
  };
  /// Results of the passes that the checks compare.
  struct Computed {
    std::unique_ptr<ModuleComparison> comparison;  // null without a shard
    std::vector<ShardPass> passes;
    std::vector<c10::IValue> outputs;
  };

  Due due(const Schedule& schedule) const;
  /// Returns what is compared again: outputs, and every other time (in steps 4,
  /// 16, 64, ...) gradients, which take most of the time.
  Extent extent_again() const;
  /// Starts over if rebuild() made the replicas again, or if gradients are to
  /// be compared for the first time.
  void follow_build(const ReplicaGroup& group, bool has_gradients);
  /// Makes `checks`, and throws if they find something. `loss` is null for a
  /// forward.
  void check(const Trial& trial, const ProcessGroup& ranks,
             const Checks& checks, Schedule* loss);
  /// Computes and compares. Adds the inputs to `inputs` before a module or a
  /// loss can write to them.
  Findings findings_of(const Trial& trial, const ProcessGroup& ranks,
                       const Checks& checks,
                       std::vector<KeptTensors>& inputs) const;
  Computed compute(const Trial& trial, const Checks& checks,
                   const KeptTensors& buffers) const;
  /// Same as compute(). Returns false if the module, a replica or the loss
  /// throws.
  bool try_compute(const Trial& trial, const Checks& checks,
                   const KeptTensors& buffers, Computed& computed) const;
  [[noreturn]] void refuse(Problem problem, const Checks& checks,
                           const Schedule* loss);
  void note(const char* what, const Outcome& outcome, Schedule& schedule);

  Verify when_;
  bool warns_;
  bool checks_next_ = false;
  std::string reason_;  // of the first outcome that is kImpossible
  int64_t build_ = -1;  // of the replicas that module_ is about
  bool has_gradients_ = false;
  Schedule module_;
  CheckState loss_ = CheckState::kPending;      // of all losses
  std::map<std::type_index, Schedule> losses_;  // by type of the function
};

}  // namespace lockstep
