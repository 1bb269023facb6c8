#pragma once

#include <memory>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "lockstep/parallel/replicas/replica_group.h"

namespace lockstep {

/// The autograd node of a DataParallel forward. Its inputs are the gradients
/// of the gathered outputs, its outputs those of the original's parameters and
/// of the inputs that require grad.
class ParallelBackward : public torch::autograd::Node {
 public:
  ParallelBackward(std::shared_ptr<ReplicaGroup> group,
                   std::shared_ptr<ReplicaGroup::Region> region)
      : group_(std::move(group)), region_(std::move(region)) {}

  std::string name() const override { return "DataParallelBackward"; }
  torch::autograd::variable_list apply(
      torch::autograd::variable_list&& gradients) override;
  void release_variables() override { region_.reset(); }

 private:
  std::shared_ptr<ReplicaGroup> group_;
  std::shared_ptr<ReplicaGroup::Region> region_;
};

}  // namespace lockstep
