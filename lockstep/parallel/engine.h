#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/device/autocast.h"
#include "lockstep/device/device.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/parallel/ddp/ddp_options.h"
#include "lockstep/parallel/exchange/grad_bucket.h"
#include "lockstep/parallel/group/data_parallel_options.h"
#include "lockstep/parallel/module/module_handle.h"
#include "lockstep/parallel/module/module_source.h"

namespace lockstep {

class CastWeights;
class LocalGradients;
class RankExchange;
class ReplicaGroup;
class StepAttachment;
class StepCheck;
namespace ddp {
class Reducer;
}
namespace optim {
class TorchOptimizer;
}

/// Runs a module on the devices of a rank, and on several ranks. It is the
/// untyped implementation of DataParallel and DistributedDataParallel.
///
/// There are two ways to make a step, and each wrapper supports both. In
/// train_step() the engine runs forward, loss, backward and update itself
/// (TrainStep, on a ReplicaGroup and a RankExchange). In a user's own loop the
/// engine watches the forward, and sums the gradients over the ranks during the
/// user's backward (Reducer). The parts that a wrapper does not use are never
/// created.
///
/// All ranks must call the collective functions in the same order.
class Engine {
 public:
  /// Constructor of DataParallel: makes the replicas and the memory that the
  /// ranks share. Collective.
  Engine(ModuleSource module, std::vector<Device> devices,
         DataParallelOptions options);
  /// Constructor of DistributedDataParallel: makes the reducer. The first
  /// train_step() makes the one replica. Collective.
  Engine(ModuleSource module, const ProcessGroup& world,
         const DistributedDataParallelOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Loops written by the user.

  /// Scatters the inputs, runs the replicas of this rank in parallel and
  /// gathers the outputs. A backward through them is not summed over ranks.
  c10::IValue forward(const std::vector<c10::IValue>& inputs);
  /// Runs `forward` on `inputs` and arranges that a backward through its output
  /// is summed over the ranks. Without autograd, it only runs `forward`. With
  /// several ranks, throws ParallelError naming a parameter of the module that
  /// `forward` wrote to.
  c10::IValue watch(const std::vector<c10::IValue>& inputs,
                    const std::function<c10::IValue()>& forward);
  void join(const std::function<void()>& steps, const JoinOptions& options);
  /// Returns the buckets of the reducer, each a list of parameter indices.
  std::vector<std::vector<size_t>> buckets();

  // Steps made by the engine.

  StepResult train_step(const std::vector<c10::IValue>& inputs,
                        const c10::IValue& target, const ShardLoss& loss,
                        optim::Optimizer* optimizer,
                        const TrainStepOptions& options);
  /// Same, with a LibTorch optimizer.
  StepResult train_step(const std::vector<c10::IValue>& inputs,
                        const c10::IValue& target, const ShardLoss& loss,
                        torch::optim::Optimizer& optimizer,
                        const TrainStepOptions& options);

  /// Updates the module's parameters from their .grad, as the optimizer's own
  /// step() does. On the host, the threads of all replicas share the work, each
  /// with its own blocks. With several ranks, each updates its own parameters.
  void update(optim::TorchOptimizer& optimizer);
  /// Throws InvalidArgument if an optimizer's parameter is not one of the
  /// module's.
  void check_has(const std::vector<torch::Tensor>& optimizer_parameters) const;

  /// Runs the forward of every shard without gradients, and calls `visit` with
  /// its output and target in the thread of its device. With several ranks,
  /// each passes its own part of the `batch` samples. Returns the number of
  /// samples in each shard of all ranks.
  std::vector<int64_t> evaluate(const std::vector<c10::IValue>& inputs,
                                const c10::IValue& target, int64_t batch,
                                const ShardVisit& visit);

  // For both kinds of steps.

  // ParallelModuleBase forwards to these functions and documents them.

  bool is_synced() const { return is_synced_; }
  /// If false, gradients stay in this rank's .grad until it is set to true
  /// again and a backward or train_step() runs.
  void set_synced(bool on);
  void set_comm_hook(const CommHook& hook);
  void rebuild();
  void load_buffers();
  void share_parameters();
  /// Also gives LibTorch's optimizers state of this rank's own.
  void unshare_parameters();
  torch::Tensor make_state(const torch::Tensor& parameter);
  torch::Tensor whole_state(const torch::Tensor& state);
  /// Divides the optimizer's state between the devices if they are accelerators
  /// with resident replicas. Otherwise, moves divided state to the first
  /// device. Steps call it.
  void place_state(optim::Optimizer& optimizer) const;
  int64_t copy_bytes() const;

  /// Returns the replicas. The first call makes them.
  ReplicaGroup& group();
  /// Returns the check of the steps that this rank makes with the others.
  const StepCheck& step_check() const { return *check_; }
  /// Makes the next step check again (Verify::kDoubling). With several ranks,
  /// each has to call it.
  void verify_next_step();

 private:
  /// Runs a forward of the module itself. With several ranks, throws if the
  /// forward wrote to a parameter.
  c10::IValue run_module(const std::function<c10::IValue()>& forward) const;
  /// Throws ParallelError for a parameter that was registered after the module
  /// was wrapped.
  void check_parameters_are_known() const;
  /// Records the parameters for run_module() and cast_watch_.
  void note_parameters(const ModuleHandle& module);
  /// Drops casts of weights that have changed. Called before a forward.
  void follow_casts();
  /// Returns whether gradients stay on this rank.
  bool is_local() const { return !is_synced_ && world_.size() > 1; }
  /// Returns whether each rank keeps only its own part of the optimizer's
  /// state.
  bool cuts_state() const;
  /// Throws InvalidArgument if train_step() can't be called now, or not with
  /// these options of DistributedDataParallel. `updates` says whether there is
  /// an optimizer.
  void check_can_step(bool updates) const;
  /// Returns the reducer. The first call makes it and is collective.
  ddp::Reducer& reducer();
  /// Starts a step. With `optimizer`, shares the parameters for the engine's
  /// update. Without one, gives each rank its own parameters.
  void begin_step(optim::Optimizer* optimizer);
  /// Gives LibTorch's optimizers state of this rank's own, because the user may
  /// make the next step with them.
  void release_optimizers();
  /// Makes the RankExchange, unless there is one for the module's current
  /// layout. Collective if it makes one.
  void follow_layout();
  /// Makes the attachments of train_step().
  void attach();
  /// Tells the attachments that parameters were written to.
  void note_written() const;
  /// Tells the attachments that parameters are others, or in other memory.
  void note_rebuild() const;
  /// Makes a step under no_sync().
  StepResult local_step(const std::vector<c10::IValue>& inputs,
                        const c10::IValue& target, const ShardLoss& loss,
                        const TrainStepOptions& options);
  /// Returns an optimizer that updates block by block in place of `optimizer`,
  /// or null if `optimizer` has to update by its own step().
  optim::TorchOptimizer* adopt(torch::optim::Optimizer& optimizer);

  ModuleSource module_;
  ProcessGroup world_;
  std::vector<Device> devices_;
  DataParallelOptions options_;
  DistributedDataParallelOptions ddp_options_;
  CommHook hook_;
  bool is_synced_ = true;
  std::shared_ptr<LocalGradients> local_gradients_;

  std::shared_ptr<ReplicaGroup> group_;
  // Attachments of train_step(). check_ is for steps with all ranks, and
  // local_check_ for those under no_sync().
  std::unique_ptr<CastWeights> casts_;
  std::unique_ptr<StepCheck> check_;
  std::unique_ptr<StepCheck> local_check_;
  std::vector<StepAttachment*> attachments_;
  std::vector<StepAttachment*> local_attachments_;
  std::unique_ptr<RankExchange> exchange_;  // only with several ranks
  // Shapes, strides and types of the parameters when exchange_ was made
  // (tensors without data).
  std::vector<torch::Tensor> layout_;
  int64_t exchange_build_ = 0;  // group_->build() when exchange_ was made
  std::shared_ptr<ddp::Reducer> reducer_;
  std::vector<torch::Tensor> weights_;  // all parameters, without group_
  CastWatch cast_watch_;
  bool has_watched_ = false;  // whether watch() has run a forward
  // The module's parameters and their names, for run_module().
  std::vector<torch::Tensor> module_parameters_;
  std::vector<std::string> parameter_names_;
  // Adapters of the last torch optimizers passed to train_step().
  std::vector<std::unique_ptr<optim::TorchOptimizer>> adopted_;
};

}  // namespace lockstep
