#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/torch.h>

#include "lockstep/comm/coalesced_calls.h"
#include "lockstep/comm/collectives/shared_memory.h"
#include "lockstep/comm/environment.h"
#include "lockstep/comm/work.h"

namespace lockstep {

using ReduceOp = c10d::ReduceOp;

struct WorldOptions {
  /// "auto", "shm", "gloo" or "nccl". auto: nccl for GPUs; on CPU shm where
  /// all ranks are on one host, which they find out from each other, else gloo.
  std::string backend = "auto";
  /// Of every wait: for the other ranks to come, and for each collective.
  std::chrono::milliseconds timeout{300'000};
  /// Where the ranks' tensors are.
  torch::DeviceType device_type = torch::kCPU;
};

/// The ranks of a job, or some of them, and what they do together. A value:
/// copies are the same world. A collective must be called by all of its ranks,
/// in the same order; in a world of one it is done at once.
///
/// Tensors are contiguous or not, on the host or (nccl) on this rank's GPU. A
/// call returns when the result is there. Its form with `_async` returns a Work
/// at once instead; calls of both forms are done in the order in which they are
/// called. Every wait ends at the timeout.
///
/// Throws InvalidArgument, before anything is sent, for arguments that can't be
/// used (a root that is not a rank, tensors that don't fit); CommError for a
/// rank that died, stalled or called something else, which the asynchronous
/// forms leave to Work::wait().
class World {
 public:
  World();  ///< of one
  int rank() const;
  int size() const;
  int local_rank() const;  ///< among the ranks on this host
  int local_size() const;
  bool is_one_host() const { return local_size() == size(); }
  /// "shm", "gloo", "nccl"; "none" in a world of one.
  std::string backend_name() const;
  /// c10d's interface to the same ranks, for c10d's own classes and Python. Its
  /// calls and those below are done in the order in which they are called. Null
  /// in a world of one.
  const c10::intrusive_ptr<c10d::Backend>& backend() const;
  const c10::intrusive_ptr<c10d::Store>& store() const;
  std::chrono::milliseconds timeout() const;

  /// In place. With shm and gloo along the tree of tree_reduce.h: the same bits
  /// on every rank and over both; with nccl in NCCL's order.
  void all_reduce(torch::Tensor& tensor,
                  const ReduceOp& op = ReduceOp::SUM) const;
  /// In place; only on `root` is the result defined.
  void reduce(torch::Tensor& tensor, int root,
              const ReduceOp& op = ReduceOp::SUM) const;
  void broadcast(torch::Tensor& tensor, int root) const;
  /// One tensor for each rank, like `tensor`, which is alike on all ranks.
  std::vector<torch::Tensor> all_gather(const torch::Tensor& tensor) const;
  /// On `root` as all_gather(); elsewhere nothing.
  std::vector<torch::Tensor> gather(const torch::Tensor& tensor,
                                    int root) const;
  /// Rank r gets `parts[r]` of `root` into `tensor`.
  void scatter(torch::Tensor& tensor, const std::vector<torch::Tensor>& parts,
               int root) const;
  /// The reduction of every rank's `parts[rank()]` into `tensor`.
  void reduce_scatter(torch::Tensor& tensor,
                      const std::vector<torch::Tensor>& parts,
                      const ReduceOp& op = ReduceOp::SUM) const;
  /// outputs[r] becomes rank r's inputs[rank()]. Sizes may differ by pair.
  void all_to_all(std::vector<torch::Tensor>& outputs,
                  const std::vector<torch::Tensor>& inputs) const;
  void barrier() const;

  // The same, begun here and done later. Results are in Work::result() as well:
  // the tensors that the others return, or write to.
  Work all_reduce_async(const torch::Tensor& tensor,
                        const ReduceOp& op = ReduceOp::SUM) const;
  Work reduce_async(const torch::Tensor& tensor, int root,
                    const ReduceOp& op = ReduceOp::SUM) const;
  Work broadcast_async(const torch::Tensor& tensor, int root) const;
  Work all_gather_async(const torch::Tensor& tensor) const;
  Work gather_async(const torch::Tensor& tensor, int root) const;
  Work scatter_async(const torch::Tensor& tensor,
                     const std::vector<torch::Tensor>& parts, int root) const;
  Work reduce_scatter_async(const torch::Tensor& tensor,
                            const std::vector<torch::Tensor>& parts,
                            const ReduceOp& op = ReduceOp::SUM) const;
  Work all_to_all_async(const std::vector<torch::Tensor>& outputs,
                        const std::vector<torch::Tensor>& inputs) const;
  Work barrier_async() const;

  /// The calls that `add` makes on the group that it gets, submitted as one:
  /// many small all-reduces cost about as much as one (see CoalescedCalls).
  /// Nothing is sent if `add` throws or adds no call.
  ///
  ///     world.coalesce([&](CoalescedCalls& group) {
  ///       for (auto& gradient : gradients) group.all_reduce(gradient);
  ///     });
  void coalesce(const std::function<void(CoalescedCalls&)>& add) const;
  /// Calls `add` here; the Work is that of all its calls.
  Work coalesce_async(const std::function<void(CoalescedCalls&)>& add) const;

  /// `tensor` to another rank, which calls recv() or recv_any() with a tensor
  /// like it. May wait for that, so two ranks that both send first wait for
  /// each other; isend() does not.
  void send(const torch::Tensor& tensor, int to, int tag = 0) const;
  void recv(torch::Tensor& tensor, int from, int tag = 0) const;
  /// From whichever rank's message with the tag comes first; returns that rank.
  int recv_any(torch::Tensor& tensor, int tag = 0) const;
  // The same, begun here and done later: beside collectives, which do not wait
  // for messages nor messages for them.
  Work isend(const torch::Tensor& tensor, int to, int tag = 0) const;
  Work irecv(const torch::Tensor& tensor, int from, int tag = 0) const;
  /// Work::source_rank() is the rank that sent.
  Work irecv_any(const torch::Tensor& tensor, int tag = 0) const;

  /// A string of every rank, by rank; for what is small and rare (names,
  /// reports).
  std::vector<std::string> all_gather_text(const std::string& text) const;

  /// Whether ranks can map memory of each other: shared_memory() works.
  bool can_share_memory() const;
  /// `bytes` of zeroed memory for each rank, which every rank can read and
  /// write (collective; `bytes` may differ). Reading what another rank wrote
  /// needs a barrier() in between. Throws CommError unless can_share_memory().
  SharedMemory shared_memory(size_t bytes) const;

  /// A world of the `ranks` of this one, in that order; called by all ranks of
  /// this one. Nothing for a rank that is not among them.
  std::optional<World> new_group(const std::vector<int>& ranks) const;

  /// Tells the other ranks that this one can't go on, where the backend can:
  /// their waits end with `reason`.
  void abort(const std::string& reason) const noexcept;

  class Impl;
  explicit World(std::shared_ptr<const Impl> impl);

 private:
  std::shared_ptr<const Impl> impl_;
};

/// The world of this process, from its environment (see environment.h). Called
/// by every rank of the job; each call makes a world of its own. Throws
/// CommError, and InvalidArgument for an environment or options that can't be.
World init(const WorldOptions& options = {});

/// After a CommError, for a rank that could go on: tells the agent of
/// `lockstep run` that started it `why` this attempt is over, waits until that
/// has replaced the ranks that ended, and joins the world of all of them. To be
/// called when nothing of the former world is left. The rank and the size may
/// be others than before.
///
/// Nothing if there is no next attempt: no such agent, no restart left, or
/// `stop` returned true.
std::optional<World> init_next(const WorldOptions& options,
                               const std::string& why,
                               const std::function<bool()>& stop = {});

/// Runs `task` as rank r of `ranks`, each in a thread of its own, and waits
/// for all. A rank that throws ends the others' waits; the first exception (in
/// time) is rethrown when all have ended. Ranks run on equal cuts of this
/// process's cores, as slices do.
void spawn(int ranks, const std::function<void(World)>& task,
           const WorldOptions& options = {});

}  // namespace lockstep
