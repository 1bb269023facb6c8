#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "lockstep/base/error.h"
#include "lockstep/device/random.h"
#include "lockstep/parallel/module/replicate.h"
#include "lockstep/parallel/replicas/first_step.h"
#include "lockstep/parallel/replicas/replica_group.h"
#include "lockstep/parallel/replicas/verified_pass.h"

namespace lockstep {

/// The values of a module's buffers, to be given back.
class KeptBuffers {
 public:
  explicit KeptBuffers(const ModuleHandle& module);
  void restore() const;

 private:
  ModuleHandle::Named buffers_;
  std::vector<torch::Tensor> values_;
};

/// Compares a shard that a replica computed with the same shard computed by
/// the module that the replica was made from: same device, threads, random
/// numbers and buffers, so outputs, loss, buffers and gradients have to have
/// the same bits.
///
///     ModuleComparison comparison(group, part);
///     comparison.run_module(compute);   // the module itself
///     pass = compute(replica);
///     comparison.compare(pass, replica, findings);
///
/// All calls are made in the thread of the replica's device. Only checksums of
/// the gradients are kept, so the check takes no more memory than a step.
class ModuleComparison {
 public:
  /// Computes the shard with the given replica, with ShardPass::output and
  /// gradient_sums.
  using Compute = std::function<ShardPass(Replica& replica)>;

  /// `part` is the shard's part of the inputs. `compute` reads it where it is,
  /// as kernels may depend on how memory is aligned.
  ModuleComparison(const ReplicaGroup& group, const c10::IValue& part);

  /// Computes the shard with the module itself. Inputs, the module's buffers
  /// and .grad and the thread's random numbers are afterwards what they were;
  /// hooks on its parameters are not called.
  void run_module(const Compute& compute);

  /// Compares `pass`, which `replica` computed, and fills in
  /// `findings.module`, and `findings.problem` if they differ. If the module
  /// itself computes something else a second time, nothing can be compared.
  void compare(const ShardPass& pass, const Replica& replica,
               FirstStep::Findings& findings);

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
  ShardPass compute_with_module(Print& print) const;
  /// `skipped` are parameters that are not compared.
  Difference difference(const Print& a, const Print& b,
                        const std::vector<bool>& skipped) const;
  /// The parameters whose gradient is added up from several parts, in an order
  /// that a replica need not share with the module.
  std::vector<bool> are_split(const ShardPass& pass) const;
  Problem problem_of(const Difference& difference) const;

  const ReplicaGroup& group_;
  std::vector<torch::Tensor> inputs_;
  std::vector<torch::Tensor> inputs_before_;
  KeptBuffers buffers_before_;
  Compute compute_;
  RandomState start_;
  bool registers_in_forward_ = false;
  Print expected_;
};

/// The checksum of a tensor's elements; "" of an undefined one.
std::string checksum_of(const torch::Tensor& tensor);

}  // namespace lockstep
