#pragma once

#include <concepts>
#include <memory>

#include <torch/optim/optimizer.h>

#include "lockstep/optim/parameters.h"  // IWYU pragma: export
#include "lockstep/parallel/parallel_module.h"

namespace lockstep::optim {

class BlockOptimizer;

/// The step of a torch::optim::SGD, Adam or AdamW, made by several threads. See
/// fuse().
class FusedOptimizer {
 public:
  FusedOptimizer(torch::optim::Optimizer& optimizer,
                 const std::shared_ptr<ParallelModuleBase>& model);
  ~FusedOptimizer();
  FusedOptimizer(FusedOptimizer&&) noexcept;
  FusedOptimizer& operator=(FusedOptimizer&&) = delete;

  /// Updates the parameters from their .grad, as the optimizer's own step()
  /// does. Throws InvalidArgument for a parameter that is not one of the
  /// model's, or is listed twice, and ParallelError for a sparse gradient.
  void step();
  /// Calls the optimizer's zero_grad().
  void zero_grad(bool set_to_none = true);

 private:
  /// Follows the optimizer's current parameter groups.
  void follow_groups();

  torch::optim::Optimizer& optimizer_;
  std::shared_ptr<Engine> engine_;
  std::unique_ptr<BlockOptimizer> blocks_;  // null on an accelerator
};

/// Returns an object whose step() replaces `optimizer.step()` in a loop of your
/// own. It is faster, and has the same bits in float and double:
///
///     torch::optim::SGD sgd(model->parameters(), 0.1);
///     auto fused = lockstep::optim::fuse(sgd, model);
///     // In each step:
///     fused.zero_grad();
///     loss(model->forward(x), y).backward();
///     fused.step();
///
/// LibTorch's own step() updates one tensor after another, with one pass over
/// memory for each operator. Here, the threads of all slices update different
/// blocks at the same time, and a block stays in the cache of its core from the
/// first operator to the last. On an accelerator, step() calls the optimizer's
/// own.
///
/// The options and the state remain those of `optimizer`, so its learning-rate
/// schedulers, torch::save(), torch::load(), add_param_group() and its own
/// step() work as before. `optimizer` must outlive the result.
///
/// `optimizer` is an SGD, Adam or AdamW of torch::optim. `model` is a
/// DataParallel or a DistributedDataParallel. With several ranks, each updates
/// its own parameters. Throws InvalidArgument for another optimizer, and for
/// parameters that are not dense, not floating-point, listed twice or not the
/// model's.
template <class Model>
FusedOptimizer fuse(torch::optim::Optimizer& optimizer, const Model& model) {
  constexpr bool kIsWrapper = requires {
    { model.ptr() } -> std::convertible_to<std::shared_ptr<ParallelModuleBase>>;
  };
  static_assert(kIsWrapper,
                "fuse() takes the optimizer and the DataParallel or "
                "DistributedDataParallel that it trains");
  return FusedOptimizer(optimizer, model.ptr());
}

}  // namespace lockstep::optim
