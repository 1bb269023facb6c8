#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/types.h>

#include "lockstep/base/chunk.h"
#include "lockstep/device/worker.h"
#include "lockstep/optim/blocks.h"
#include "lockstep/parallel/group/data_parallel_options.h"
#include "lockstep/parallel/group/step_clock.h"
#include "lockstep/parallel/module/member_watch.h"
#include "lockstep/parallel/module/module_source.h"
#include "lockstep/parallel/module/replica.h"

namespace lockstep {

/// Replicas of a module by worker. The last one of worker k runs its shards,
/// except shard 0. The first one of worker 0 runs shard 0 and shares the
/// original's buffers.
using Replicas = std::vector<std::vector<Replica>>;

/// A module, its replicas and the threads that run them. A batch is cut into
/// shards. Worker k runs a contiguous range of them, one after another.
///
/// With several ranks, each rank has a group for its own shards, and the
/// group's functions act only on this rank. Not thread-safe.
class ReplicaGroup {
 public:
  /// The functions of `module` are called again when the original was rebuilt.
  ReplicaGroup(ModuleSource module, std::vector<Device> devices,
               DataParallelOptions options);

  const DataParallelOptions& options() const { return options_; }
  const std::vector<Device>& devices() const { return devices_; }
  const Device& output_device() const { return output_device_; }
  const std::vector<std::unique_ptr<Worker>>& workers() const {
    return workers_;
  }
  /// Shards of all ranks, and of this rank.
  int64_t shards() const { return shards_; }
  const ShardRange& own_shards() const { return own_shards_; }
  int64_t dim() const { return options_.dim(); }
  int rank() const { return options_.process_group().rank(); }
  /// Returns the number of samples of a batch for each device of each rank.
  std::vector<int64_t> split(int64_t batch) const;
  /// Describes a parameter whose bits differ between a replica and the
  /// original, for example after a copy over a bad link. Returns "" if there is
  /// none. Must be called between steps.
  std::string damaged_copy() const;

  const ModuleHandle& original() const { return original_; }
  /// Unique parameters of the original.
  const std::vector<torch::Tensor>& parameters() const { return parameters_; }
  /// Returns the name of parameters()[p], or its first name if it has several.
  const std::string& name_of(size_t p) const;
  /// Resets .grad of all parameters().
  void drop_gradients() const;
  /// Index in parameters() of each named parameter of the original.
  const std::vector<size_t>& unique() const { return unique_; }
  /// Blocks of the parameters.
  const std::vector<optim::Block>& blocks() const { return blocks_; }

  /// Reads the original again and recreates all replicas.
  void rebuild();
  /// Rebuilds if a submodule or a tensor of the original was replaced.
  void follow_module();
  /// Number of times the group was rebuilt.
  int64_t build() const { return build_; }
  /// Makes all replicas again, with the parameters that they had. They get the
  /// members that the original has now.
  void remake_replicas();
  /// The replicas of now. They outlive remake_replicas() for a backward.
  const std::shared_ptr<Replicas>& replicas() const { return replicas_; }
  /// Makes the replicas again if members have changed, without a comparison.
  /// The next step compares them.
  void follow_members_in_evaluation();
  /// Returns whether the module's forward or backward calls other ranks. False
  /// before the first step.
  bool calls_ranks() const { return calls_ranks_; }
  void set_calls_ranks(bool calls_ranks) { calls_ranks_ = calls_ranks; }
  /// Members of the original that are not registered.
  MemberWatch& members() { return members_; }
  /// Returns whether this thread computes a shard of this group.
  bool is_at_work() const;
  /// Returns whether any part of the module is in training mode.
  bool is_training() const;
  /// Returns, for each of parameters(), whether `is_reached` is true for a
  /// replica's leaf of it.
  std::vector<bool> are_reached(
      const std::function<bool(const torch::Tensor& leaf)>& is_reached) const;

  /// Throws InvalidArgument for an input on a device without a replica.
  void check_inputs(const c10::IValue& inputs) const;
  /// Cuts `inputs` into this rank's shards, as scatter() does. `trains` is true
  /// in a training step, where a change of the batch size causes a warning.
  std::vector<c10::IValue> scatter_checked(const c10::IValue& inputs,
                                           bool trains);
  /// Cuts `inputs` into shards of `sizes` samples. The first one is for the
  /// device of this rank's first shard.
  std::vector<c10::IValue> cut(const c10::IValue& inputs,
                               const std::vector<int64_t>& sizes) const;

  /// Key of the random numbers of a forward or a backward, together with the
  /// seed and the shard. No two of them share a key.
  struct RandomStream {
    int64_t step = 0;
    uint64_t phase = 0;
  };
  /// Returns the stream of a forward. A forward that does not train uses
  /// separate streams, so the number of such forwards does not change the
  /// dropout of the next step.
  RandomStream forward_stream(bool trains);
  RandomStream step_stream() const { return {.step = step_}; }
  void set_step(int64_t step) { step_ = step; }
  void count_step() { ++step_; }

  /// Starts a forward over shards 0 to `chunks` (of all ranks). Updates the
  /// replicas from the original.
  void begin(int64_t chunks);
  /// Until the next begin(), replicas have `copies` as their leaves: one for
  /// each of parameters(), undefined where they use the parameter itself. Empty
  /// for none.
  void use_copies(std::span<const torch::Tensor> copies);
  using ShardTask =
      std::function<void(size_t worker, int64_t shard, Replica& replica)>;
  /// Runs `task` for this rank's shards below `chunks`, each on its worker. All
  /// random numbers of a shard's task (the forward, the loss function, a custom
  /// backward) come from the shard's own part of `stream`. If there are several
  /// shards, throws ParallelError naming a parameter that a task wrote to.
  /// `replicas`: if not null, replicas() of an earlier forward.
  void for_each_shard(int64_t chunks, const RandomStream& stream,
                      const ShardTask& task, Replicas* replicas = nullptr);
  /// Runs `task` in the same way for `shard`, if it belongs to this rank and is
  /// below `chunks`.
  void on_shard(int64_t shard, int64_t chunks, const RandomStream& stream,
                const std::function<void(Replica& replica)>& task);
  /// Loads what the replica needs for the forward of `shard`: parameters,
  /// buffers and members. Must be called in a shard's task.
  void load_replica(int64_t shard, Replica& replica);
  /// Keeps what the forward of `shard` left in the buffers, if the original's
  /// become their mean (Buffers::kMean). Must be called in a shard's task.
  void keep_buffers(int64_t shard, const Replica& replica);
  /// Sets the original's buffers as the options say. Must be called after the
  /// shards.
  void finish_buffers(int64_t chunks);

  /// Runs `task` on all workers at once, each in its device's lane of the
  /// trace.
  void for_each_worker(const std::function<void(size_t worker)>& task);

  /// Records a step that is not finite. Returns whether it is the first one.
  bool note_not_finite() { return !std::exchange(has_not_finite_, true); }

  /// Measures the last forward or step.
  StepClock& clock() { return *clock_; }

 private:
  /// Throws ParallelError if this thread computes a shard of this group, or of
  /// another group with several workers, which could call this group at the
  /// same time.
  void check_not_nested() const;
  void read_original();
  void make_replicas();
  /// Returns whether the module has buffers and gets the mean of the shards'.
  bool averages_buffers() const;
  /// Returns the shards of worker `worker` of this rank.
  ShardRange shards_of(size_t worker) const;
  /// Takes the seed of the options, or the one that torch::manual_seed() set.
  void follow_seed();
  void watch_batch(int64_t samples, int64_t chunks, bool trains);
  /// Waits until no other worker runs shards on the accelerator of worker
  /// `worker`, and keeps it. Replicas on one device would draw from the same
  /// generator of random numbers.
  std::unique_lock<std::mutex> turn_of(size_t worker);

  ModuleSource module_;
  ModuleHandle original_;
  std::vector<const void*> identity_;  // of original_, when it was read
  int64_t build_ = 0;                  // number of rebuild() calls
  int64_t remade_ = 0;                 // number of remake_replicas() calls
  bool calls_ranks_ = false;
  MemberWatch members_;
  std::vector<std::byte> evaluated_members_;  // of the last evaluation
  std::vector<Device> devices_;
  DataParallelOptions options_;
  Device output_device_;
  int64_t shards_;
  ShardRange own_shards_{};
  std::vector<Device> shard_devices_;  // device of each of own_shards_
  int64_t step_ = 0;
  int64_t forwards_ = 0;        // number of forwards and steps so far
  int64_t forwards_aside_ = 0;  // number of forwards so far that do not train
  uint64_t seed_ = 0;
  int64_t last_batch_ = -1;
  bool has_not_finite_ = false;

  std::vector<torch::Tensor> parameters_;
  std::vector<size_t> unique_;
  std::vector<optim::Block> blocks_;
  std::span<const torch::Tensor> copies_;  // in this forward
  std::vector<std::unique_ptr<Worker>> workers_;
  std::map<std::string, std::mutex> turns_;  // by name of the device
  std::shared_ptr<Replicas> replicas_;
  std::vector<torch::Tensor> buffer_snapshot_;
  ModuleHandle::Members member_snapshot_;
  std::vector<std::vector<torch::Tensor>> shard_buffers_;  // Buffers::kMean
  std::unique_ptr<StepClock> clock_;
};

}  // namespace lockstep
