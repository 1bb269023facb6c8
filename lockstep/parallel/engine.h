#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include "lockstep/comm/world.h"
#include "lockstep/device/worker.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/optim/torch_optimizer.h"
#include "lockstep/parallel/ddp/options.h"
#include "lockstep/parallel/exchange/grad_bucket.h"
#include "lockstep/parallel/module/module_handle.h"
#include "lockstep/parallel/replicas/data_parallel_options.h"

namespace lockstep {

class LocalGradients;
class RankExchange;
class ReplicaGroup;
namespace ddp {
class Reducer;
}

/// What runs a module on the devices of a rank, and on several ranks:
/// DataParallel and DistributedDataParallel without the types.
///
/// There are two ways to make a step, and a face has both. In train_step() the
/// engine runs forward, loss, backward and update itself (TrainStep, on a
/// ReplicaGroup and a RankExchange). In a loop of the user's own it watches the
/// forward, and sums the gradients over the ranks while the user's backward
/// runs (Reducer). What a face does not use is not made.
///
/// What is said to be collective is called by all ranks, in the same order.
class Engine {
 public:
  /// How to get at the module: `read` reads it as it is now, `replicate` makes
  /// one like it.
  struct Module {
    std::function<ModuleHandle()> read;
    std::function<ModuleHandle()> replicate;
  };

  /// Of DataParallel: makes the replicas now, and what the ranks share.
  /// Collective.
  Engine(Module module, std::vector<Device> devices,
         DataParallelOptions options);
  /// Of DistributedDataParallel: makes the reducer now, and one replica at the
  /// first train_step(). Collective.
  Engine(Module module, const World& world,
         const DistributedDataParallelOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // A loop of the user's own.

  /// Scatter, parallel forward, gather. Of several ranks the first forward
  /// under autograd is collective.
  c10::IValue forward(const std::vector<c10::IValue>& inputs);
  /// Runs `forward`, of `inputs`, such that a backward through its output is
  /// summed over the ranks; without autograd, only runs it. With several ranks,
  /// throws ParallelError naming a parameter of the module that it wrote to.
  c10::IValue watch(const std::vector<c10::IValue>& inputs,
                    const std::function<c10::IValue()>& forward);
  void join(const std::function<void()>& steps, const JoinOptions& options);
  /// The buckets of the reducer: each one's parameters, by place.
  std::vector<std::vector<size_t>> buckets();

  // Steps that the engine makes.

  StepResult train_step(const std::vector<c10::IValue>& inputs,
                        const c10::IValue& target, const ShardLoss& loss,
                        optim::Optimizer* optimizer,
                        const TrainStepOptions& options);
  /// Likewise, with an optimizer of LibTorch's.
  StepResult train_step(const std::vector<c10::IValue>& inputs,
                        const c10::IValue& target, const ShardLoss& loss,
                        torch::optim::Optimizer& optimizer,
                        const TrainStepOptions& options);

  /// Forward of every shard without gradients, and `visit` with its output and
  /// target, in its device's thread; with several ranks each passes its own
  /// part of `batch` samples. Returns the samples of each shard of all ranks.
  std::vector<int64_t> evaluate(const std::vector<c10::IValue>& inputs,
                                const c10::IValue& target, int64_t batch,
                                const ShardVisit& visit);

  // Both.

  bool is_synced() const { return is_synced_; }
  /// Off: gradients stay this rank's, in .grad, until a backward or a
  /// train_step() after it is on again.
  void set_synced(bool on);
  /// Replaces the sum over the ranks. Before the first step, once, on all
  /// ranks.
  void set_comm_hook(const CommHook& hook);

  /// Reads the module again and makes all replicas anew. Of several ranks each
  /// has to call it before the next step.
  void rebuild();
  /// Gives this rank rank 0's buffers, as they were after the last step.
  void load_buffers();
  /// Of several ranks that can share the parameters: does so now. Collective.
  void share_parameters();
  /// Of several ranks that share the parameters: gives this rank its own, and
  /// state of its own to LibTorch's optimizers.
  void unshare_parameters();
  /// Zeros for an optimizer, where its state belongs. Collective.
  torch::Tensor make_state(const torch::Tensor& parameter);
  /// A tensor of an optimizer's state with the elements of all ranks: itself,
  /// or a copy if each rank has a part of it (ZeroStage). Collective.
  torch::Tensor whole_state(const torch::Tensor& state);
  /// Of gradients that were copied for other ranks, beside the accounts.
  int64_t copy_bytes() const;

  /// The replicas, which the first call makes.
  ReplicaGroup& group();

 private:
  /// Runs a forward of the module itself. With several ranks, throws if it
  /// wrote to a parameter.
  c10::IValue run_module(const std::function<c10::IValue()>& forward) const;
  /// Throws ParallelError for a parameter that was registered after the wrap.
  void check_parameters_are_known() const;
  /// Reads the parameters for run_module().
  void note_parameters(const ModuleHandle& module);
  /// Whether gradients stay this rank's.
  bool is_local() const { return !is_synced_ && world_.size() > 1; }
  /// Whether each rank has its own part of the optimizer's state alone.
  bool cuts_state() const;
  /// Throws InvalidArgument if a train_step() can't be made now, or not with
  /// these options of DistributedDataParallel. `updates`: with an optimizer.
  void check_can_step(bool updates) const;
  /// The reducer. The first call makes it, which is collective.
  ddp::Reducer& reducer();
  /// Starts a step: shares the parameters for the engine's own update by
  /// `optimizer`, or gives each rank its own without one.
  void begin_step(const optim::Optimizer* optimizer);
  /// Gives LibTorch's optimizers, with which the user may make the next step,
  /// state of this rank's own.
  void release_optimizers();
  /// Makes what the ranks exchange gradients with, unless it was made for the
  /// module as it is now. Collective if it does.
  void follow_layout();
  /// A step under no_sync().
  StepResult local_step(const std::vector<c10::IValue>& inputs,
                        const c10::IValue& target, const ShardLoss& loss,
                        const TrainStepOptions& options);
  /// What updates for `optimizer`, block by block; null if that is its own
  /// affair.
  optim::TorchOptimizer* adopt(torch::optim::Optimizer& optimizer);

  Module module_;
  World world_;
  std::vector<Device> devices_;
  DataParallelOptions options_;
  DistributedDataParallelOptions ddp_options_;
  CommHook hook_;
  bool is_synced_ = true;
  std::shared_ptr<LocalGradients> local_gradients_;

  std::shared_ptr<ReplicaGroup> group_;
  std::unique_ptr<RankExchange> exchange_;  // of several ranks
  // Without data: what the parameters were when exchange_ was made.
  std::vector<torch::Tensor> layout_;
  int64_t exchange_build_ = 0;  // of group_, when exchange_ was made
  std::shared_ptr<ddp::Reducer> reducer_;
  bool has_watched_ = false;  // a forward
  // The module's parameters and their names, for run_module().
  std::vector<torch::Tensor> module_parameters_;
  std::vector<std::string> parameter_names_;
  // The last torch optimizers that train_step() got.
  std::vector<std::unique_ptr<optim::TorchOptimizer>> adopted_;
};

}  // namespace lockstep
