#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/torch.h>

#include "lockstep/base/chunk.h"
#include "lockstep/base/trace.h"
#include "lockstep/comm/world.h"
#include "lockstep/device/worker.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/optim/torch_optimizer.h"
#include "lockstep/parallel/exchange/rank_exchange.h"
#include "lockstep/parallel/module/replicate.h"
#include "lockstep/parallel/reduction/reduction.h"
#include "lockstep/parallel/replicas/data_parallel_options.h"
#include "lockstep/parallel/replicas/differentiable_inputs.h"

namespace lockstep {

/// Loss of one shard: a scalar, from the replica's output and the shard's
/// target. Called in the device's thread.
using ShardLoss = std::function<torch::Tensor(const c10::IValue& output,
                                              const c10::IValue& target)>;

/// A module, its replicas and the threads that run them: DataParallel without
/// the types. A batch is cut into shards; worker k runs a contiguous block of
/// them, one after another.
class ReplicaGroup : public std::enable_shared_from_this<ReplicaGroup> {
 public:
  /// `read_module` reads the original, `make_replica` makes a module like it;
  /// both are called again when the original was rebuilt.
  ReplicaGroup(std::function<ModuleHandle()> read_module,
               std::function<ModuleHandle()> make_replica,
               std::vector<Device> devices, DataParallelOptions options);

  /// Reads the original again and makes all replicas anew. Of several ranks
  /// each has to call it before the next step.
  void rebuild();

  /// Scatter, parallel forward, gather. The result has one autograd node,
  /// whose backward runs the replicas' backwards in their threads.
  c10::IValue forward(const std::vector<c10::IValue>& inputs);

  /// Forward, loss and backward of every shard in its device's thread, then
  /// reduction and (with an `optimizer`) the update by all threads at once.
  /// Without one the gradients are added to the original's .grad. With one,
  /// gradients that are there already are added to the step's, and .grad is
  /// empty afterwards. Hooks on parameters see the batch's gradient; inputs
  /// that require grad, and leaves that the loss uses, get theirs.
  /// `inputs` and `target` may be nested; they are scattered alike. Of several
  /// ranks each passes the samples of its own shards.
  StepResult train_step(const std::vector<c10::IValue>& inputs,
                        const c10::IValue& target, const ShardLoss& loss,
                        optim::Optimizer* optimizer,
                        const TrainStepOptions& options);
  /// Likewise, with an optimizer of LibTorch's.
  StepResult train_step(const std::vector<c10::IValue>& inputs,
                        const c10::IValue& target, const ShardLoss& loss,
                        torch::optim::Optimizer& optimizer,
                        const TrainStepOptions& options);

  const std::vector<Device>& devices() const { return devices_; }
  const Device& output_device() const { return output_device_; }
  int64_t shards() const { return shards_; }
  int64_t dim() const { return options_.dim(); }
  const std::vector<std::unique_ptr<Worker>>& workers() const {
    return workers_;
  }
  const PhaseTimes& phase_times() const { return phases_; }
  void set_step(int64_t step) { step_ = step; }
  void load_buffers() {
    if (exchange_) exchange_->load_buffers();
  }
  /// Of several ranks that can share the parameters: does so now.
  void share_parameters() {
    if (exchange_) exchange_->begin_step(true);
  }
  /// Of several ranks that share the parameters: gives this rank its own.
  void unshare_parameters() {
    if (exchange_) exchange_->unshare_parameters();
  }
  /// Samples of a batch for each device of each rank.
  std::vector<int64_t> split(int64_t batch) const;
  /// Zeros for an optimizer, where its state belongs.
  torch::Tensor make_state(const torch::Tensor& parameter);
  /// Of gradients that were copied for other ranks, beside the accounts.
  int64_t copy_bytes() const { return exchange_ ? exchange_->copy_bytes() : 0; }

 private:
  friend class ParallelBackward;

  /// With the seed and the shard, the key of the random numbers of a forward or
  /// a backward. No two of them share a key.
  struct RandomStream {
    int64_t step = 0;
    uint64_t phase = 0;
  };

  /// What a forward under grad mode leaves for the backward.
  struct Region {
    RandomStream stream;
    int64_t build = 0;      // of the replicas that made it
    int64_t backwards = 0;  // made through it
    // [shard][i]: outputs with their graph, and leaves for the inputs that
    // require grad.
    std::vector<std::vector<torch::Tensor>> outputs;
    std::vector<std::vector<torch::Tensor>> input_leaves;
    DifferentiableInputs inputs;
  };
  using ShardTask =
      std::function<void(size_t worker, int64_t shard, Replica& replica)>;

  /// What updates for `optimizer`, block by block; null if that is its own
  /// affair.
  optim::TorchOptimizer* adopt(torch::optim::Optimizer& optimizer);

  void read_original();
  void make_replicas();
  void make_exchange();
  /// Rebuilds if a submodule or a tensor of the original was replaced.
  void follow_module();
  /// Starts a step: of several ranks, shares the parameters for the engine's
  /// own update by `optimizer`, or gives each rank its own without one.
  void begin_step(const optim::Optimizer* optimizer);
  /// Throws InvalidArgument if the replicas that made `region` are gone.
  void check_build(const Region& region) const;
  /// Whether any part of the module is in training.
  bool is_training() const;
  RandomStream forward_stream(bool trains);
  static RandomStream backward_stream(Region& region);
  std::vector<c10::IValue> scatter_checked(const c10::IValue& inputs,
                                           bool trains);
  /// The shards of this rank, of a batch of `samples` over all ranks.
  std::vector<c10::IValue> cut_own(const c10::IValue& inputs,
                                   const std::vector<int64_t>& sizes) const;
  /// The shards of worker `worker` of this rank, of all shards.
  ShardRange shards_of(size_t worker) const;
  void check_inputs(const c10::IValue& inputs) const;
  void watch_batch(int64_t samples, int64_t chunks, bool trains);
  /// Starts a forward over `chunks` shards: buffers, random step, phases.
  void begin(int64_t chunks);
  /// Runs `task` for this rank's shards below `chunks`, each on its worker.
  /// All that a shard's task draws (the forward, the loss function, a custom
  /// backward) comes from its own part of `stream`; default: of a step.
  void for_each_shard(int64_t chunks, const ShardTask& task,
                      const RandomStream& stream);
  void for_each_shard(int64_t chunks, const ShardTask& task) {
    for_each_shard(chunks, task, {.step = step_});
  }
  c10::IValue forward_shard(size_t worker, int64_t shard, Replica& replica,
                            const std::vector<c10::IValue>& inputs);
  void finish_buffers(int64_t chunks);
  /// Where the gradients of the unique parameters and of the inputs go. A
  /// parameter or input that no output depends on has no edge: the engine would
  /// call its hooks, with no gradient.
  torch::autograd::edge_list edges_behind(const Region& region) const;
  std::vector<torch::Tensor> backward(
      Region& region, const std::vector<torch::Tensor>& output_gradients,
      bool keep_graph, std::vector<torch::Tensor>& input_gradients);
  /// A batch's shards: the samples of all, and the parts of this rank's own.
  struct StepShards {
    int64_t batch = 0;
    std::vector<int64_t> samples;
    std::vector<c10::IValue> parts;
  };
  /// `all` is the tuple of the inputs and the target.
  StepShards cut(const c10::IValue& all, int64_t batch);
  Reduction reduction_of(std::vector<std::vector<PartialSum>> partials,
                         int64_t chunks, StepTotals& totals) const;
  std::vector<torch::Tensor> finish(Reduction& reduction);
  /// Adds the sums to the parameters' .grad and calls the hooks that are
  /// registered on them, as a backward of the module itself would.
  void accumulate(std::vector<torch::Tensor> sums);
  /// Whether an update must go through .grad: a parameter has gradients there
  /// or hooks, or the optimizer leaves out a parameter. Otherwise the sums can
  /// be used block by block as they are made.
  bool overlaps_another(size_t p, const torch::Tensor& grad) const;
  bool needs_grad(const std::vector<size_t>& positions) const;
  /// What is in .grad of the parameters at `positions`, which is empty after
  /// that; one for each of parameters_. Of several ranks, throws
  /// InvalidArgument naming the first parameter whose gradients differ.
  std::vector<torch::Tensor> take_grads(const std::vector<size_t>& positions);
  void drop_grads(const std::vector<size_t>& positions) const;
  /// Sums and updates block by block. `positions` are positions_in(optimizer).
  void update(Reduction& reduction, const std::vector<size_t>& positions,
              optim::Optimizer& optimizer);
  /// Updates with `gradients`, one for each of parameters_ in memory of its
  /// own. `clip` above 0 scales them to that norm at most; if their norm is not
  /// finite, nothing is updated.
  void update_whole(const std::vector<torch::Tensor>& gradients,
                    const std::vector<size_t>& positions,
                    optim::Optimizer& optimizer, double clip,
                    StepResult& result);
  /// The norm of all gradients, of which `view` gives the blocks.
  double norm_of(const std::function<torch::Tensor(const optim::Block&)>& view,
                 const std::vector<optim::Block>& blocks);
  /// For each parameter of the optimizer its place in parameters_.
  std::vector<size_t> positions_in(const optim::Optimizer& optimizer) const;
  /// Runs `task(block, scratch)` over `count` blocks with all threads, each in
  /// a span called `name`.
  void for_each_block(const char* name, size_t count,
                      const std::function<void(size_t, torch::Tensor&)>& task);
  void collect_phases();
  /// Tells the observer of the options.
  void enter(StepPhase phase) const {
    if (options_.on_phase()) options_.on_phase()(phase);
  }
  int rank() const { return options_.world().rank(); }
  /// Of worker `worker`: each of its tasks begins with it.
  TraceLane lane_of(size_t worker) const;

  std::function<ModuleHandle()> read_module_;
  std::function<ModuleHandle()> make_replica_;
  ModuleHandle original_;
  std::vector<const void*> identity_;  // of original_, when it was read
  // Without data: what parameters_ were when exchange_ was made.
  std::vector<torch::Tensor> layout_;
  int64_t build_ = 0;  // counts rebuild()
  std::vector<Device> devices_;
  DataParallelOptions options_;
  Device output_device_;
  int64_t shards_;
  ShardRange own_shards_{};            // this rank's
  std::vector<Device> shard_devices_;  // of own_shards_
  int64_t step_ = 0;
  int64_t forwards_ = 0;        // and steps, so far
  int64_t forwards_aside_ = 0;  // of them, those that do not train
  uint64_t seed_ = 0;
  int64_t last_batch_ = -1;

  std::vector<torch::Tensor> parameters_;  // of the original, each once
  std::vector<size_t> unique_;  // for each named parameter, its place there
  std::vector<optim::Block> blocks_;
  // The last torch optimizers that train_step() got.
  std::vector<std::unique_ptr<optim::TorchOptimizer>> adopted_;
  std::vector<std::unique_ptr<Worker>> workers_;
  // replicas_[k].back() runs worker k's shards, but for shard 0, which
  // replicas_[0].front() runs, the replica that shares the original's buffers.
  std::vector<std::vector<Replica>> replicas_;
  std::vector<torch::Tensor> buffer_snapshot_;
  ModuleHandle::Members member_snapshot_;
  std::vector<std::vector<torch::Tensor>> shard_buffers_;  // Buffers::kMean
  PhaseTimes phases_;
  std::vector<PhaseTimes> worker_phases_;
  std::unique_ptr<RankExchange> exchange_;  // if there are several ranks
};

}  // namespace lockstep
