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
#include "lockstep/parallel/module/replicate.h"
#include "lockstep/parallel/replicas/first_step.h"
#include "lockstep/parallel/replicas/replica_group.h"
#include "lockstep/parallel/replicas/verified_pass.h"

namespace lockstep {

/// Compares a shard that a replica computed with the same shard computed by
/// the module that the replica was made from: same device, threads, random
/// numbers and buffers, so outputs, loss, buffers and gradients have to have
/// the same bits.
///
///     auto comparison = run_module(group, ..., compute);  // the module itself
///     pass = compute(replica);
///     comparison->compare(pass, replica);
///     findings = settle(group, comparison, ...);
///
/// The module runs before and after the replicas, never beside them: a loss may
/// use the module's parameters directly, and the backward through the module
/// keeps other parts of them aside meanwhile. Only
/// checksums of the gradients are kept, so the check takes no more memory than
/// a step.
class ModuleComparison {
 public:
  /// Part of a pass that is computed.
  enum class Extent { kForward, kForwardAndBackward };
  /// Computes the shard with the given replica, with ShardPass::output and
  /// gradient_sums.
  using Compute =
      std::function<ShardPass(Replica& replica, size_t part, Extent extent)>;

  /// `parts` are the inputs of this rank's shards, of which `compute` reads
  /// number `part`. `buffers` are those of the module. All outlive the
  /// comparison.
  ModuleComparison(const ReplicaGroup& group,
                   const std::vector<c10::IValue>& parts, size_t part,
                   const KeptTensors& buffers, Compute compute);

  /// Number of the compared shard among those of this rank.
  size_t part() const { return part_; }

  /// Computes the shard with the module itself, and its forward once more to
  /// see whether the module changes itself. Inputs, the module's buffers and
  /// .grad and the thread's random numbers are afterwards what they were; hooks
  /// on its parameters are not called.
  void run_module();

  /// Compares `pass`, which `replica` computed.
  void compare(const ShardPass& pass, const Replica& replica);
  bool differs() const { return !found_.name.empty(); }
  /// Returns false if the module computed only zeros, as dead relus do: a
  /// replica that computes something else could have the same.
  bool is_telling() const { return is_telling_ || registers_in_forward_; }
  /// Returns the outcome for a replica that does not differ.
  FirstStep::Outcome outcome() const;

  /// Runs the module once more, to tell a replica that is wrong from a module
  /// that computes something else each time. Fills in `findings.module`, and
  /// `findings.problem` if the replica is wrong.
  void explain(FirstStep::Findings& findings);

 private:
  /// The checksums of what a pass gave.
  struct Print {
    std::vector<std::pair<std::string, std::string>> outputs;
    std::string loss;
    std::vector<std::string> buffers;
    std::vector<std::string> gradients;  // by unique parameter; "": no gradient
    std::vector<std::string> inputs;
  };
  /// The first thing in which two passes differ.
  struct Difference {
    std::string name;    ///< "the gradient of parameter 'fc.weight'"; "": none
    int parameter = -1;  ///< its place among the unique ones
  };

  static Print print_of(const ShardPass& pass,
                        const ModuleHandle::Named& buffers);
  /// `print` is of the module's buffers after the pass.
  ShardPass compute_with_module(Print& print, Extent extent) const;
  /// `skipped` are parameters that are not compared.
  Difference difference(const Print& a, const Print& b,
                        const std::vector<bool>& skipped) const;
  /// The parameters whose gradient is added up from several parts, in an order
  /// that a replica need not share with the module.
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
  bool is_telling_ = true;
  // An output that changes from forward to forward; "": no output does.
  std::string changing_output_;
  Print expected_;
  Print got_;
  Difference found_;
  // The replica's gradients that differ, perhaps only by rounding.
  std::vector<torch::Tensor> rounded_;
};

/// Computes this rank's first shard with the module itself, in the thread of
/// the shard's device, while no other shard runs; the next one if that is not
/// telling. (GPUs: the first only, as the module is on its device.) `parts` are
/// the inputs of this rank's shards. Returns null if the rank has no shards.
std::unique_ptr<ModuleComparison> run_module(
    ReplicaGroup& group, const KeptTensors& buffers,
    const std::vector<c10::IValue>& parts, int64_t chunks,
    const ReplicaGroup::RandomStream& stream,
    const ModuleComparison::Compute& compute);

/// Ends a comparison on all ranks of `world`: explains it if one of them
/// differs. A rank without a shard has no `comparison`. Collective.
FirstStep::Findings settle(ReplicaGroup& group, const World& world,
                           ModuleComparison* comparison, int64_t chunks,
                           const ReplicaGroup::RandomStream& stream);

/// Makes all ranks of `world` agree on `findings`. If there is a problem, gives
/// the module its `buffers` back and throws ParallelError. Collective.
void agree_or_refuse(const World& world, FirstStep::Findings& findings,
                     const KeptTensors& buffers);

}  // namespace lockstep
