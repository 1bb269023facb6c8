#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/types.h>

#include "lockstep/base/error.h"
#include "lockstep/device/random.h"
#include "lockstep/parallel/group/replica_group.h"
#include "lockstep/parallel/module/kept_tensors.h"
#include "lockstep/parallel/module/module_handle.h"
#include "lockstep/parallel/module/replica.h"
#include "lockstep/parallel/trial/findings.h"
#include "lockstep/parallel/trial/trial.h"

namespace lockstep {

/// Compares a shard that a replica computed with the same shard computed by the
/// module that the replica was made from. Both use the same device, threads,
/// random numbers and buffers, so outputs, loss, buffers and gradients must
/// have the same bits.
///
///     auto comparison = run_module(trial, buffers);  // the module itself
///     compare_replica(trial, *comparison);
///     if (comparison->differs()) comparison->explain(findings);
///
/// The module runs before the replica, never at the same time as one. A loss
/// may use the module's parameters directly, and the backward through the
/// module temporarily removes their .grad and hooks. Only checksums of the
/// gradients are kept, so the check takes no more memory than a step.
class ModuleComparison {
 public:
  /// Compares the shard at index `part` of this rank. `buffers` are those of
  /// the module. Both must outlive the comparison.
  ModuleComparison(const Trial& trial, size_t part, const KeptTensors& buffers,
                   Extent extent = Extent::kForwardAndBackward);

  /// Returns the index of the compared shard among those of this rank.
  size_t part() const { return part_; }

  /// Computes the shard with the module itself. Afterwards restores the inputs,
  /// the module's buffers and .grad, and the thread's random numbers. Hooks on
  /// the module's parameters are not called.
  void run_module();
  /// Computes the forward once more, to see whether the module changes itself.
  void run_forward_again();
  /// Computes a forward of other samples with the module itself, and restores
  /// the same. Members that forward() assigns to can't be restored. Afterwards
  /// they have other values than the shard's, so a loss that reads such a
  /// member of the module differs from the module's.
  void run_module_on_others() const;

  /// Returns whether the module's forward registers parameters, buffers or
  /// submodules.
  bool registers_in_forward() const { return registers_in_forward_; }
  /// Computes the shard with `replica`, restores the inputs and the module's
  /// buffers, and compares the results.
  void compare(Replica& replica);
  bool differs() const { return !found_.name.empty(); }
  /// Returns false if the module computed only zeros, as with dead ReLUs. A
  /// replica that computes something else could also give zeros.
  bool is_conclusive() const { return is_conclusive_ || registers_in_forward_; }
  /// Returns the outcome for a replica that does not differ.
  Outcome outcome() const;

  /// Runs the module once more, to distinguish a wrong replica from a module
  /// that gives other results each time. Fills in `findings.module`, and
  /// `findings.problem` if the replica is wrong.
  void explain(Findings& findings);

 private:
  /// Checksums of the results of a pass.
  struct Print {
    std::vector<std::pair<std::string, std::string>> outputs;
    std::string loss;
    std::vector<std::string> buffers;
    std::vector<std::string> gradients;  // by unique parameter; "": no gradient
    std::vector<std::string> inputs;
  };
  /// First difference between two passes.
  struct Difference {
    std::string name;  ///< for example "the gradient of parameter 'fc.weight'";
                       ///< "" if equal
    int parameter = -1;  ///< its index among the unique parameters
  };

  static Print print_of(const TrialPass& pass,
                        const ModuleHandle::Named& buffers);
  /// Runs the module. `print` gets the checksums of the pass, with those of the
  /// module's buffers after it.
  TrialPass compute_with_module(Print& print, Extent extent) const;
  /// Returns the first difference. `skipped` are parameters that are not
  /// compared.
  Difference difference(const Print& a, const Print& b,
                        const std::vector<bool>& skipped) const;
  /// Returns the parameters whose gradient is added up from several parts. The
  /// replica and the module may add them in different orders.
  std::vector<bool> are_split(const TrialPass& pass) const;
  Problem problem_of(const Difference& difference) const;

  const Trial& trial_;
  const ReplicaGroup& group_;
  size_t part_;
  std::vector<torch::Tensor> inputs_;
  KeptTensors inputs_before_;
  const KeptTensors& buffers_before_;
  Extent extent_;
  RandomState start_;
  bool registers_in_forward_ = false;
  bool is_conclusive_ = true;
  // An output that changes from one forward to the next, or "".
  std::string changing_output_;
  Print expected_;
  Print got_;
  Difference found_;
  // Gradients of the replica that differ, possibly only by rounding.
  std::vector<torch::Tensor> rounded_;
};

/// Computes this rank's first shard with the module itself, in the thread of
/// the shard's device, while no other shard runs. On CPU, continues with the
/// next shard if the result is not telling. On GPUs, tries only the first
/// shard, because the module is on its device. Also sees whether the module
/// changes itself. Returns null if the rank has no shards.
std::unique_ptr<ModuleComparison> run_module(const Trial& trial,
                                             const KeptTensors& buffers);

/// Same, for a check that is made again: uses the first shard, and does not see
/// whether the module changes itself. With Extent::kForward, only outputs and
/// buffers are compared.
std::unique_ptr<ModuleComparison> run_module_again(const Trial& trial,
                                                   const KeptTensors& buffers,
                                                   Extent extent);
/// Same as run_module(), and also runs the module on other samples, and notes
/// whether it calls other ranks (SyncBatchNorm).
std::unique_ptr<ModuleComparison> run_module_first(const Trial& trial,
                                                   const KeptTensors& buffers);

/// Compares the shard of `comparison` as a replica computes it, in the thread
/// of its device.
void compare_replica(const Trial& trial, ModuleComparison& comparison);
/// Runs explain() in the thread of the shard's device.
void explain(const Trial& trial, ModuleComparison& comparison,
             Findings& findings);

}  // namespace lockstep
