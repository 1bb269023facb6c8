#pragma once

#include <vector>

#include <torch/types.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/module/module_handle.h"
#include "lockstep/train/state/stateful.h"
#include "lockstep/train/train_options.h"

namespace lockstep::training {

/// Combines the parameters of ranks that each trained by itself for some steps:
/// local SGD (Stich, 2019, arXiv 1805.09767) and DiLoCo (Douillard et al.,
/// 2023, arXiv 2311.08105).
///
/// Every rank keeps the anchor: the parameters that all ranks had after the
/// last outer step. In step():
///
/// 1. change = (anchor - parameters) / ranks, on each rank;
/// 2. the changes are summed over the ranks, along the tree of
///    ProcessGroup::all_reduce(): the same bits on every rank;
/// 3. the outer optimizer uses that mean as a gradient at the anchor. kAverage:
///    anchor -= lr * change. kNesterov: momentum = outer_momentum * momentum +
///    change; anchor -= lr * (change + outer_momentum * momentum), as
///    torch.optim.SGD with nesterov does;
/// 4. every rank's parameters become the anchor, and every rank's buffers
///    become those of rank 0.
class OuterStep : public Stateful {
 public:
  /// The parameters must be the same on all ranks now.
  OuterStep(const ProcessGroup& world, const ModuleHandle& module,
            const CommunicationOptions& options);

  /// Collective.
  void step();

  /// Returns "momentum.<i>", one for each parameter, the same on every rank.
  /// Empty for kAverage.
  OptimizerState state() const override;
  /// Also makes the present parameters the anchor. They must have been loaded
  /// before, the same on all ranks.
  void load_state(const OptimizerState& state) override;

 private:
  /// Returns the type in which changes are sent.
  torch::ScalarType type_of(const torch::Tensor& parameter) const;

  ProcessGroup world_;
  ModuleHandle::Named buffers_;
  CommunicationOptions options_;
  double lr_;
  std::vector<torch::Tensor> parameters_;
  std::vector<torch::Tensor> anchor_;
  std::vector<torch::Tensor> momentum_;  // kNesterov
};

}  // namespace lockstep::training
