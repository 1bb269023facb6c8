#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/types.h>

#include "lockstep/base/error.h"
#include "lockstep/device/random.h"
#include "lockstep/parallel/module/kept_tensors.h"
#include "lockstep/parallel/module/replica.h"
#include "lockstep/parallel/replicas/first_step.h"
#include "lockstep/parallel/replicas/replica_group.h"
#include "lockstep/parallel/replicas/verified_pass.h"

namespace lockstep {

/// Compares a shard that a replica computed with the same shard computed by the
/// module that the replica was made from. Both use the same device, threads,
/// random numbers and buffers, so outputs, loss, buffers and gradients must
/// have the same bits.
///
///     auto comparison = run_module(group, ..., compute);  // the module itself
///     pass = compute(replica);
///     comparison->compare(pass, replica);
///     findings = settle(group, comparison, ...);
///
/// The module runs before and after the replicas, never at the same time. A
/// loss may use the module's parameters directly, and the backward through the
/// module temporarily removes their .grad and hooks. Only checksums of the
/// gradients are kept, so the check takes no more memory than a step.
class ModuleComparison {
 public:
  /// Part of a pass to be computed. kForwardOfOthers is a forward of other
  /// samples (DifferentiableInputs::with_other_samples()).
  enum class Extent { kForward, kForwardOfOthers, kForwardAndBackward };
  /// Computes the shard at index `part` of this rank with the given replica,
  /// including ShardPass::output and gradient_sums.
  using Compute =
      std::function<ShardPass(Replica& replica, size_t part, Extent extent)>;

  /// `inputs` are those of the shard at index `part` of this rank, and
  /// `buffers` are those of the module. Both must outlive the comparison.
  ModuleComparison(const ReplicaGroup& group, const c10::IValue& inputs,
                   size_t part, const KeptTensors& buffers, Compute compute);

  /// Returns the index of the compared shard among those of this rank.
  size_t part() const { return part_; }

  /// Computes the shard with the module itself, and its forward once more to
  /// see whether the module changes itself. Afterwards restores the inputs, the
  /// module's buffers and .grad, and the thread's random numbers. Hooks on the
  /// module's parameters are not called.
  void run_module();
  /// Computes a forward of other samples with the module itself, and restores
  /// the same. Members that forward() assigns to can't be restored. Afterwards
  /// they have other values than the shard's, so a loss that reads such a
  /// member of the module differs from the module's.
  void run_module_on_others() const;

  /// Returns whether the module's forward registers parameters, buffers or
  /// submodules.
  bool registers_in_forward() const { return registers_in_forward_; }
  /// Computes the shard with `replica`, restores the inputs and the module's
  /// buffers, compares the pass, and returns whether it has the bits of the
  /// module's. A pass that throws differs.
  bool has_bits_of(Replica& replica);
  /// Compares `pass`, which `replica` computed.
  void compare(const ShardPass& pass, const Replica& replica);
  bool differs() const { return !found_.name.empty(); }
  /// Returns false if the module computed only zeros, as with dead ReLUs. A
  /// replica that computes something else could also give zeros.
  bool is_conclusive() const { return is_conclusive_ || registers_in_forward_; }
  /// Returns the outcome for a replica that does not differ.
  FirstStep::Outcome outcome() const;

  /// Runs the module once more, to distinguish a wrong replica from a module
  /// whose results vary. Fills in `findings.module`, and `findings.problem` if
  /// the replica is wrong.
  void explain(FirstStep::Findings& findings);

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

  static Print print_of(const ShardPass& pass,
                        const ModuleHandle::Named& buffers);
  /// Runs the module. `print` gets the checksums of the pass, with those of the
  /// module's buffers after it.
  ShardPass compute_with_module(Print& print, Extent extent) const;
  /// Returns the first difference. `skipped` are parameters that are not
  /// compared.
  Difference difference(const Print& a, const Print& b,
                        const std::vector<bool>& skipped) const;
  /// Returns the parameters whose gradient is added up from several parts. The
  /// replica and the module may add them in different orders.
  std::vector<bool> are_split(const ShardPass& pass) const;
  Problem problem_of(const Difference& difference) const;

  const ReplicaGroup& group_;
  size_t part_;
  std::vector<torch::Tensor> inputs_;
  KeptTensors inputs_before_;
  const KeptTensors& buffers_before_;
  Compute compute_;
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
/// shard, because the module is on its device. `parts` are the inputs of this
/// rank's shards. Returns null if the rank has no shards.
std::unique_ptr<ModuleComparison> run_module(
    ReplicaGroup& group, const KeptTensors& buffers,
    const std::vector<c10::IValue>& parts, int64_t chunks,
    const ReplicaGroup::RandomStream& stream,
    const ModuleComparison::Compute& compute);

/// Same, for the check of the first step: also runs the module on other
/// samples, and notes whether it calls other ranks (SyncBatchNorm).
std::unique_ptr<ModuleComparison> run_module_first(
    ReplicaGroup& group, const KeptTensors& buffers,
    const std::vector<c10::IValue>& parts, int64_t chunks,
    const ReplicaGroup::RandomStream& stream,
    const ModuleComparison::Compute& compute);

/// Follows assignments to members of the module that are not registered, if
/// there are any since the replicas were made (MemberWatch): makes the replicas
/// again and compares one of them with the module. Restores the module's
/// `buffers` and throws ParallelError if it computes something else. `compute`
/// is that of ModuleComparison. Not collective.
void follow_members(ReplicaGroup& group, const std::vector<c10::IValue>& parts,
                    int64_t chunks, const ReplicaGroup::RandomStream& stream,
                    const ModuleComparison::Compute& compute);

/// Ends a comparison on all ranks of `world`, and explains it if a rank found a
/// difference. `comparison` is null on a rank without a shard. Collective.
FirstStep::Findings settle(ReplicaGroup& group, const ProcessGroup& world,
                           ModuleComparison* comparison, int64_t chunks,
                           const ReplicaGroup::RandomStream& stream);

/// Makes all ranks of `world` agree on `findings`. If there is a problem,
/// restores the module's `buffers` and throws ParallelError. Collective.
void agree_or_refuse(const ProcessGroup& world, FirstStep::Findings& findings,
                     const KeptTensors& buffers);

}  // namespace lockstep
