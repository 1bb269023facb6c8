#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/types.h>

#include "lockstep/comm/coalesced_calls.h"
#include "lockstep/comm/collectives/shared_memory.h"
#include "lockstep/comm/environment.h"
#include "lockstep/comm/work.h"
#include "lockstep/device/links/bad_links.h"

namespace lockstep {

using ReduceOp = c10d::ReduceOp;

/// How ranks are connected.
struct WorldOptions {
  /// "auto", "shm", "gloo" or "nccl". "auto" is nccl for GPUs. On CPU it is shm
  /// if all ranks are on one host, which they tell each other, else gloo.
  std::string backend = "auto";
  /// How long each wait may take: that for the other ranks to come, and that of
  /// each collective.
  std::chrono::milliseconds timeout{300'000};
  /// Where the ranks' tensors are.
  torch::DeviceType device_type = torch::kCPU;
  /// nccl: what is done when copies between this host's GPUs arrive changed.
  BadLinks bad_links = BadLinks::kStage;
};

/// The ranks of a job, or some of them, and what they do together. A value:
/// copies are the same world. All ranks of the world must call a collective, in
/// the same order. In a world of one it is done at once.
///
/// Tensors may have gaps. They are on the host or (nccl) on this rank's GPU. A
/// call returns when the result is there. Its form with `_async` returns a Work
/// at once instead. Calls of both forms are done in the order in which they are
/// made. Every wait ends at the timeout.
///
/// Calls throw InvalidArgument, before anything is sent, for arguments that
/// can't be used (a root that is not a rank, tensors that don't fit). They
/// throw CommError for a rank that died, stalled or called something else; for
/// an asynchronous form, Work::wait() throws it.
class World {
 public:
  World();  ///< a world of one
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

  /// In place. shm and gloo reduce along the tree of tree_reduce.h, which gives
  /// the same bits on every rank and with both; nccl in NCCL's order. (The
  /// engine sums over nccl along the tree, too.)
  void all_reduce(torch::Tensor& tensor,
                  const ReduceOp& op = ReduceOp::SUM) const;
  /// In place. The result is defined on `root` only.
  void reduce(torch::Tensor& tensor, int root,
              const ReduceOp& op = ReduceOp::SUM) const;
  void broadcast(torch::Tensor& tensor, int root) const;
  /// The tensors of all ranks, by rank. `tensor` must have the same type and
  /// shape on all ranks.
  std::vector<torch::Tensor> all_gather(const torch::Tensor& tensor) const;
  /// Likewise, into `outputs`, one for each rank. `tensor` may be the output of
  /// this rank.
  void all_gather(std::vector<torch::Tensor>& outputs,
                  const torch::Tensor& tensor) const;
  /// On `root` the same as all_gather(); on other ranks nothing.
  std::vector<torch::Tensor> gather(const torch::Tensor& tensor,
                                    int root) const;
  /// On rank r, `tensor` gets `parts[r]` of `root`.
  void scatter(torch::Tensor& tensor, const std::vector<torch::Tensor>& parts,
               int root) const;
  /// `tensor` gets the reduction of the `parts[rank()]` of all ranks. It may be
  /// this rank's part of that name itself.
  void reduce_scatter(torch::Tensor& tensor,
                      const std::vector<torch::Tensor>& parts,
                      const ReduceOp& op = ReduceOp::SUM) const;
  /// outputs[r] gets inputs[rank()] of rank r. Sizes may differ from pair to
  /// pair.
  void all_to_all(std::vector<torch::Tensor>& outputs,
                  const std::vector<torch::Tensor>& inputs) const;
  void barrier() const;

  // The same calls, begun here and done later. Work::result() has the tensors
  // that the forms above return, or write to.
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

  /// Submits the calls that `add` makes on its group as one call. Many small
  /// all-reduces then cost about as much as one (see CoalescedCalls). Nothing
  /// is sent if `add` throws or adds no call.
  ///
  ///     world.coalesce([&](CoalescedCalls& group) {
  ///       for (auto& gradient : gradients) group.all_reduce(gradient);
  ///     });
  void coalesce(const std::function<void(CoalescedCalls&)>& add) const;
  /// Calls `add` at once. The Work is that of all its calls.
  Work coalesce_async(const std::function<void(CoalescedCalls&)>& add) const;

  /// Sends `tensor` to another rank, which calls recv() or recv_any() with a
  /// tensor of the same type and size. May wait for that call, so two ranks
  /// that both send first wait for each other. isend() does not wait.
  void send(const torch::Tensor& tensor, int to, int tag = 0) const;
  void recv(torch::Tensor& tensor, int from, int tag = 0) const;
  /// Receives the first message with the tag that comes from any rank, and
  /// returns that rank.
  int recv_any(torch::Tensor& tensor, int tag = 0) const;
  // The same calls, begun here and done later. Collectives do not wait for
  // messages, nor messages for collectives.
  Work isend(const torch::Tensor& tensor, int to, int tag = 0) const;
  Work irecv(const torch::Tensor& tensor, int from, int tag = 0) const;
  /// Work::source_rank() is the rank that sent.
  Work irecv_any(const torch::Tensor& tensor, int tag = 0) const;

  /// The texts of all ranks, by rank. For texts that are small and rare, such
  /// as names and reports.
  std::vector<std::string> all_gather_text(const std::string& text) const;

  /// Bytes that this rank's collectives over gloo have sent so far; 0 for other
  /// backends.
  int64_t sent_bytes() const;

  /// Whether the ranks can map each other's memory, so that shared_memory()
  /// works.
  bool can_share_memory() const;
  /// A collective: allocates `bytes` of zeroed memory for each rank, which
  /// every rank can read and write. `bytes` may differ from rank to rank.
  /// Between a write of one rank and a read of another there must be a
  /// barrier(). Throws CommError unless can_share_memory().
  SharedMemory shared_memory(size_t bytes) const;

  /// A world of the `ranks` of this one, in that order. All ranks of this world
  /// must call it. A rank that is not among `ranks` gets nothing.
  std::optional<World> new_group(const std::vector<int>& ranks) const;

  /// Tells the other ranks that this one can't go on: their waits end with
  /// `reason`, if the backend can do that.
  void abort(const std::string& reason) const noexcept;

  class Impl;
  explicit World(std::shared_ptr<const Impl> impl);

 private:
  std::shared_ptr<const Impl> impl_;
};

/// The world of this process, from its environment (see environment.h). Every
/// rank of the job must call it. Each call makes another world. Throws
/// CommError, and InvalidArgument for an environment or options that can't be
/// used.
World init(const WorldOptions& options = {});

/// For a rank that could go on after a CommError. Tells the agent of
/// `lockstep run` that started it `why` this attempt is over, waits until the
/// agent has replaced the ranks that ended, and joins the world of all of them.
/// Must be called when nothing of the former world is left. The rank and the
/// size may change.
///
/// Returns nothing if there is no next attempt: there is no such agent, no
/// restart is left, or `stop` returned true.
std::optional<World> init_next(const WorldOptions& options,
                               const std::string& why,
                               const std::function<bool()>& stop = {});

/// Runs `task` once for each of `ranks` ranks, in a thread each, and waits for
/// all. If a rank throws, the waits of the others end. When all have ended, the
/// first exception (in time) is rethrown. The ranks share the cores of this
/// process equally, as slices do.
void spawn(int ranks, const std::function<void(World)>& task,
           const WorldOptions& options = {});

}  // namespace lockstep
