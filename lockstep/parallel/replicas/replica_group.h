#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/types.h>

#include "lockstep/base/chunk.h"
#include "lockstep/base/trace.h"
#include "lockstep/device/worker.h"
#include "lockstep/optim/blocks.h"
#include "lockstep/parallel/module/replicate.h"
#include "lockstep/parallel/replicas/data_parallel_options.h"
#include "lockstep/parallel/replicas/first_step.h"

namespace lockstep {

/// The shard of the batch, counted over all ranks, that this thread works on:
/// in a module's forward(), a loss function or a hook. -1 elsewhere.
int64_t current_shard();

/// A module, its replicas and the threads that run them. A batch is cut into
/// shards; worker k runs a contiguous block of them, one after another.
///
/// Of several ranks each has a group for its own shards; what a group does is
/// this rank's alone. Not thread-safe.
class ReplicaGroup {
 public:
  /// `read_module` reads the original, `make_replica` makes a module like it;
  /// both are called again when the original was rebuilt.
  ReplicaGroup(std::function<ModuleHandle()> read_module,
               std::function<ModuleHandle()> make_replica,
               std::vector<Device> devices, DataParallelOptions options);

  const DataParallelOptions& options() const { return options_; }
  const std::vector<Device>& devices() const { return devices_; }
  const Device& output_device() const { return output_device_; }
  const std::vector<std::unique_ptr<Worker>>& workers() const {
    return workers_;
  }
  /// Of all ranks, and this rank's.
  int64_t shards() const { return shards_; }
  const ShardRange& own_shards() const { return own_shards_; }
  int64_t dim() const { return options_.dim(); }
  int rank() const { return options_.world().rank(); }
  /// Samples of a batch for each device of each rank.
  std::vector<int64_t> split(int64_t batch) const;
  /// Says which parameter a replica has other bits of than the original, as
  /// after a copy over a bad link; "" if none. Between steps.
  std::string damaged_copy() const;

  const ModuleHandle& original() const { return original_; }
  /// Of the original, each once.
  const std::vector<torch::Tensor>& parameters() const { return parameters_; }
  /// The name of parameters()[p]; the first one of a parameter with several.
  const std::string& name_of(size_t p) const;
  /// Empties .grad of all parameters().
  void drop_gradients() const;
  /// For each named parameter of the original its place in parameters().
  const std::vector<size_t>& unique() const { return unique_; }
  /// The parameters' blocks.
  const std::vector<optim::Block>& blocks() const { return blocks_; }

  /// Reads the original again and makes all replicas anew.
  void rebuild();
  /// Rebuilds if a submodule or a tensor of the original was replaced.
  void follow_module();
  /// How often it was rebuilt.
  int64_t build() const { return build_; }
  /// Whether any part of the module is in training.
  bool is_training() const;
  /// Whether a parameter of a replica is among `leaves`, by the place in
  /// parameters() that it belongs to.
  std::vector<bool> are_reached(
      const std::function<bool(const torch::Tensor& leaf)>& is_reached) const;

  /// Throws InvalidArgument for an input on a device without a replica.
  void check_inputs(const c10::IValue& inputs) const;
  /// Cuts `inputs` into this rank's shards, as scatter() does. `trains`: of a
  /// step, so that a change of the batch's size is worth a warning.
  std::vector<c10::IValue> scatter_checked(const c10::IValue& inputs,
                                           bool trains);
  /// Cuts `inputs` into shards of `sizes` samples, the first on the device of
  /// this rank's first shard.
  std::vector<c10::IValue> cut(const c10::IValue& inputs,
                               const std::vector<int64_t>& sizes) const;

  /// With the seed and the shard, the key of the random numbers of a forward or
  /// a backward. No two of them share a key.
  struct RandomStream {
    int64_t step = 0;
    uint64_t phase = 0;
  };
  /// Of a forward. One that does not train draws from streams aside: however
  /// often it is called, the next step's dropout is the same.
  RandomStream forward_stream(bool trains);
  RandomStream step_stream() const { return {.step = step_}; }
  void set_step(int64_t step) { step_ = step; }
  void count_step() { ++step_; }

  /// Starts a forward over shards 0 to `chunks` (of all ranks): brings the
  /// replicas in line with the original, and starts the phases anew.
  void begin(int64_t chunks);
  using ShardTask =
      std::function<void(size_t worker, int64_t shard, Replica& replica)>;
  /// Runs `task` for this rank's shards below `chunks`, each on its worker.
  /// All that a shard's task draws (the forward, the loss function, a custom
  /// backward) comes from its own part of `stream`. If there are several
  /// shards, throws ParallelError naming a parameter that a task wrote to.
  void for_each_shard(int64_t chunks, const RandomStream& stream,
                      const ShardTask& task);
  /// Runs `task` in the same way for `shard`, if it is one of this rank's and
  /// below `chunks`.
  void on_shard(int64_t shard, int64_t chunks, const RandomStream& stream,
                const std::function<void(Replica& replica)>& task);
  /// In a shard's task.
  c10::IValue forward_shard(size_t worker, int64_t shard, Replica& replica,
                            const std::vector<c10::IValue>& inputs);
  /// After the shards: the original's buffers are those of the options.
  void finish_buffers(int64_t chunks);

  /// Runs `task` on each worker, at once, in its device's lane of the trace.
  void for_each_worker(const std::function<void(size_t worker)>& task);

  /// The checks of the first step.
  FirstStep& first_step() { return first_step_; }
  const FirstStep& first_step() const { return first_step_; }
  /// The checks that a rank makes without the other ranks, in calls that are
  /// not collective: in evaluations and under no_sync().
  FirstStep& own_first_step() { return own_first_step_; }
  /// Notes a step that is not finite. Returns whether it is the first one.
  bool note_not_finite() { return !std::exchange(has_not_finite_, true); }

  /// Of the last forward or step; what each part of the engine did is added by
  /// that part.
  PhaseTimes& phases() { return phases_; }
  PhaseTimes& phases_of(size_t worker) { return worker_phases_[worker]; }
  /// Starts the workers' phases anew.
  void restart_worker_phases();
  /// Takes the slowest worker's phases over into phases().
  void collect_phases();

 private:
  /// Throws ParallelError if this thread computes a shard of this group, or of
  /// another group with several workers, which could call this one at once.
  void check_not_nested() const;
  void read_original();
  void make_replicas();
  /// The shards of worker `worker` of this rank, of all shards.
  ShardRange shards_of(size_t worker) const;
  void watch_batch(int64_t samples, int64_t chunks, bool trains);

  std::function<ModuleHandle()> read_module_;
  std::function<ModuleHandle()> make_replica_;
  ModuleHandle original_;
  std::vector<const void*> identity_;  // of original_, when it was read
  int64_t build_ = 0;                  // counts rebuild()
  std::vector<Device> devices_;
  DataParallelOptions options_;
  Device output_device_;
  int64_t shards_;
  ShardRange own_shards_{};
  std::vector<Device> shard_devices_;  // of own_shards_
  int64_t step_ = 0;
  int64_t forwards_ = 0;        // and steps, so far
  int64_t forwards_aside_ = 0;  // of them, those that do not train
  uint64_t seed_ = 0;
  int64_t last_batch_ = -1;
  FirstStep first_step_;
  FirstStep own_first_step_;
  bool has_not_finite_ = false;

  std::vector<torch::Tensor> parameters_;
  std::vector<size_t> unique_;
  std::vector<optim::Block> blocks_;
  std::vector<std::unique_ptr<Worker>> workers_;
  // replicas_[k].back() runs worker k's shards, but for shard 0, which
  // replicas_[0].front() runs, the replica that shares the original's buffers.
  std::vector<std::vector<Replica>> replicas_;
  std::vector<torch::Tensor> buffer_snapshot_;
  ModuleHandle::Members member_snapshot_;
  std::vector<std::vector<torch::Tensor>> shard_buffers_;  // Buffers::kMean
  PhaseTimes phases_;
  std::vector<PhaseTimes> worker_phases_;
};

}  // namespace lockstep
