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
#include "lockstep/device/worker.h"
#include "lockstep/parallel/ddp/ddp_options.h"
#include "lockstep/parallel/exchange/grad_bucket.h"
#include "lockstep/parallel/group/data_parallel_options.h"
#include "lockstep/parallel/module/module_handle.h"
#include "lockstep/parallel/module/module_source.h"

namespace lockstep {

class LocalGradients;
class RankExchange;
class ReplicaGroup;
class StepAttachment;
struct StepCheckReport;
namespace ddp {
class Reducer;
}
namespace optim {
class BlockOptimizer;
}

/// Keeps gradients on their rank during its lifetime.
class NoSync {
 public:
  ~NoSync();
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  friend class Engine;
  explicit NoSync(std::shared_ptr<LocalGradients> gradients);

  std::shared_ptr<LocalGradients> gradients_;
  bool was_synced_;
};

/// The optimizer of a step. With neither, the step adds the gradients to the
/// parameters' .grad.
struct StepOptimizer {
  torch::optim::Optimizer* whole = nullptr;
  /// One that the caller has already cut into blocks. The caller places its
  /// state (Engine::place_state()).
  optim::BlockOptimizer* blocks = nullptr;
};

/// Runs a module on the devices of a rank, and on several ranks. It is the
/// untyped base of DataParallel and DistributedDataParallel.
///
/// There are two ways to make a step, and each wrapper supports both. In
/// train_step() the engine runs forward, loss, backward and update itself
/// (TrainStep, on a ReplicaGroup and a RankExchange). In a user's own loop the
/// engine watches the forward, and sums the gradients over the ranks during the
/// user's backward (Reducer). The parts that a wrapper does not use are never
/// created.
///
/// All ranks must call the collective functions in the same order. Not
/// thread-safe.
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

  // For users of a wrapper (ParallelModuleBase).

  /// Keeps gradients on this rank during the lifetime of the result. The
  /// gradients of a backward whose forward ran under it, and those of a
  /// train_step() without an optimizer, are added only to this rank's .grad.
  /// The next synced backward or train_step() sums all of them over the ranks.
  /// A program may use both. The gradients of a step are summed as they are,
  /// and those of a backward with this rank's weight in the call that sums. If
  /// GradientAverage::kSamples makes the two weights differ, as with an uneven
  /// last batch, that call throws ParallelError.
  [[nodiscard]] NoSync no_sync() { return NoSync(local_gradients_); }

  /// Replaces the sum of gradients over the ranks. Must be called once, before
  /// the first step and before the optimizer is made. Each rank then updates
  /// all parameters.
  void register_comm_hook(const CommHook& hook);

  /// Runs `steps`, a loop of forward(), backward() and an optimizer's step().
  /// The number of steps may differ between ranks. Ranks that are done answer
  /// the others with zeros, and at the end take over the parameters of the
  /// ranks that made the most steps. The optimizer's state is not exchanged.
  void join(const std::function<void()>& steps,
            const JoinOptions& options = {});

  const std::vector<Device>& devices() const { return devices_; }
  /// Returns the number of shards of a batch, on all ranks together.
  int64_t shards() const;
  /// Returns the number of samples of a batch that each device of each rank
  /// gets.
  std::vector<int64_t> split(int64_t batch) const;
  /// Times of the last train_step(), or of the last forward() of DataParallel.
  PhaseTimes phase_times() const;
  const std::vector<std::unique_ptr<Worker>>& workers() const;
  /// Sets the number that keys the random streams of the next train_step().
  void set_step(int64_t step);

  /// Returns an optimizer's state tensor with the elements of all ranks, to be
  /// saved: `state` itself, or a copy if each rank has a part of it
  /// (ZeroStage). Collective with several ranks.
  torch::Tensor whole_state(const torch::Tensor& state);
  /// Bytes of gradients that had to be copied for other ranks. Not charged to
  /// any device.
  int64_t copy_bytes() const;
  /// Copies rank 0's buffers to this rank, as they were after the last step, as
  /// the next forward would do. Buffers loaded since then are kept.
  void load_buffers();
  /// Makes the next step prove once more that it computes what the module does
  /// (Verify::kDoubling), as the Trainer does at the beginning of an epoch.
  /// With several ranks, each has to call it.
  void verify_next_step();
  /// Recreates the replicas from the current state of the module. With several
  /// ranks, each has to call it.
  void rebuild();
  /// With several ranks on one host: shares the parameters now instead of at
  /// the first train_step() with an optimizer. Collective.
  void share_parameters();
  /// With several ranks on one host, which share the parameters while
  /// train_step() gets an optimizer: gives this rank its own copy of the
  /// parameters, which can then be changed by hand. The next step checks that
  /// they are equal on all ranks and shares them again. Also gives optimizers
  /// of train_step() state of this rank's own, in one piece.
  void unshare_parameters();

  // For the wrappers and the Trainer.

  /// Scatters the inputs, runs the replicas of this rank in parallel and
  /// gathers the outputs. A backward through them is not summed over ranks.
  c10::IValue forward(const std::vector<c10::IValue>& inputs);
  /// Device where forward() gathers the outputs.
  const Device& output_device() const;
  /// Runs `forward` on `inputs` and arranges that a backward through its output
  /// is summed over the ranks. Without autograd, it only runs `forward`. With
  /// several ranks, throws ParallelError naming a parameter of the module that
  /// `forward` wrote to.
  c10::IValue watch(const std::vector<c10::IValue>& inputs,
                    const std::function<c10::IValue()>& forward);
  /// Returns the buckets of the reducer in the order in which they are
  /// exchanged. Each lists the parameters whose gradients are exchanged
  /// together, by their index among the trainable parameters.
  std::vector<std::vector<size_t>> buckets() const;

  /// Makes a step (ParallelModule::train_step).
  StepResult train_step(const std::vector<c10::IValue>& inputs,
                        const c10::IValue& target, const ShardLoss& loss,
                        StepOptimizer optimizer,
                        const TrainStepOptions& options = {});

  /// Updates the module's parameters from their .grad, as the optimizer's own
  /// step() does. On the host, the threads of all replicas share the work, each
  /// with its own blocks. With several ranks, each updates its own parameters.
  void update(optim::BlockOptimizer& optimizer);
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

  /// Returns zeros for an optimizer's state, in shared memory if the ranks
  /// share memory. Collective with several ranks.
  torch::Tensor make_state(const torch::Tensor& parameter);
  /// Divides the optimizer's state between the devices if the options ask for
  /// it and they are accelerators with resident replicas. Otherwise, moves
  /// divided state to the first device. Steps with a torch optimizer call it.
  void place_state(optim::BlockOptimizer& optimizer) const;

  /// Returns the replicas. The first call makes them.
  ReplicaGroup& group() const;
  /// Returns what the checks of the steps that this rank made with the others
  /// have found.
  StepCheckReport step_checks() const;

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
  bool is_local() const;
  /// Returns whether each rank keeps only its own part of the optimizer's
  /// state.
  bool cuts_state() const;
  /// Throws InvalidArgument if train_step() can't be called now, or not with
  /// these options of DistributedDataParallel. `updates` says whether there is
  /// an optimizer.
  void check_can_step(bool updates) const;
  /// Returns the reducer. The first call makes it and is collective.
  ddp::Reducer& reducer() const;
  /// Starts a step. With `optimizer`, shares the parameters for the engine's
  /// update. Without one, gives each rank its own parameters.
  void begin_step(optim::BlockOptimizer* optimizer);
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
  /// ready for a step, or null if `optimizer` has to update by its own step().
  optim::BlockOptimizer* adopt(torch::optim::Optimizer& optimizer);
  /// Ends a step that has added its gradients to .grad by `optimizer`'s own
  /// step(), unless `result` says that nothing is updated.
  void update_whole(torch::optim::Optimizer& optimizer,
                    const TrainStepOptions& options, StepResult& result);

  ModuleSource module_;
  ProcessGroup world_;
  std::vector<Device> devices_;
  DataParallelOptions options_;
  DistributedDataParallelOptions ddp_options_;
  CommHook hook_;
  std::shared_ptr<LocalGradients> local_gradients_;

  mutable std::shared_ptr<ReplicaGroup> group_;  // made when it is needed
  std::vector<std::unique_ptr<StepAttachment>> attachments_;
  std::vector<std::unique_ptr<StepAttachment>> local_attachments_;  // no_sync()
  std::unique_ptr<RankExchange> exchange_;  // only with several ranks
  // Shapes, strides and types of the parameters when exchange_ was made
  // (tensors without data).
  std::vector<torch::Tensor> layout_;
  int64_t exchange_build_ = 0;  // group_->build() when exchange_ was made
  mutable std::shared_ptr<ddp::Reducer> reducer_;  // made when it is needed
  std::vector<torch::Tensor> weights_;  // all parameters, without group_
  CastWatch cast_watch_;
  bool has_watched_ = false;  // whether watch() has run a forward
  // The module's parameters and their names, for run_module().
  std::vector<torch::Tensor> module_parameters_;
  std::vector<std::string> parameter_names_;
  // Adapters of the last torch optimizers passed to train_step().
  std::vector<std::unique_ptr<optim::BlockOptimizer>> adopted_;
};

}  // namespace lockstep
