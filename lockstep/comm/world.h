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

/// Options for the connection between ranks.
struct WorldOptions {
  /// "auto", "shm", "gloo" or "nccl". "auto" is nccl for GPUs. On CPU it is shm
  /// if the ranks find that all of them are on one host, and gloo otherwise.
  std::string backend = "auto";
  /// Limit of each wait, for the other ranks to arrive and for each collective.
  std::chrono::milliseconds timeout{300'000};
  /// Device type of the ranks' tensors.
  torch::DeviceType device_type = torch::kCPU;
  /// nccl: action to take if copies between this host's GPUs arrive corrupted.
  BadLinks bad_links = BadLinks::kStage;
};

/// The ranks of a job, or some of them, and their collective operations. Copies
/// refer to the same world. All ranks of the world must call a collective, in
/// the same order. With a world size of one, it completes at once.
///
/// Tensors may have gaps. They are on the host or (nccl) on this rank's GPU. A
/// call returns when the result is ready. Its `_async` form returns a Work at
/// once instead. Calls of both forms run in the order in which they are made.
/// Every wait ends at the timeout.
///
/// Calls throw InvalidArgument, before anything is sent, for invalid arguments
/// (a root that is not a rank, tensors that don't match). They throw CommError
/// for a rank that died, stalled or called something else. For an asynchronous
/// form, Work::wait() throws it.
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
  /// calls and those below run in the order in which they are made. Null in a
  /// world of one.
  const c10::intrusive_ptr<c10d::Backend>& backend() const;
  const c10::intrusive_ptr<c10d::Store>& store() const;
  std::chrono::milliseconds timeout() const;

  /// Reduces in place. shm and gloo reduce along the tree of tree_reduce.h,
  /// which gives the same bits on every rank and with both. nccl reduces in
  /// NCCL's order. (The engine also sums along the tree over nccl.)
  void all_reduce(torch::Tensor& tensor,
                  const ReduceOp& op = ReduceOp::SUM) const;
  /// Reduces in place. The result is defined on `root` only.
  void reduce(torch::Tensor& tensor, int root,
              const ReduceOp& op = ReduceOp::SUM) const;
  void broadcast(torch::Tensor& tensor, int root) const;
  /// Returns the tensors of all ranks, by rank. `tensor` must have the same
  /// type and shape on all ranks.
  std::vector<torch::Tensor> all_gather(const torch::Tensor& tensor) const;
  /// Same, into `outputs`, one for each rank. `tensor` may be the output of
  /// this rank.
  void all_gather(std::vector<torch::Tensor>& outputs,
                  const torch::Tensor& tensor) const;
  /// Returns the same as all_gather() on `root`, and nothing on other ranks.
  std::vector<torch::Tensor> gather(const torch::Tensor& tensor,
                                    int root) const;
  /// Writes `parts[r]` of `root` to `tensor` on rank r.
  void scatter(torch::Tensor& tensor, const std::vector<torch::Tensor>& parts,
               int root) const;
  /// Writes the reduction of `parts[rank()]` of all ranks to `tensor`, which
  /// may be this rank's `parts[rank()]`.
  void reduce_scatter(torch::Tensor& tensor,
                      const std::vector<torch::Tensor>& parts,
                      const ReduceOp& op = ReduceOp::SUM) const;
  /// Writes inputs[rank()] of rank r to outputs[r]. Sizes may differ between
  /// pairs of ranks.
  void all_to_all(std::vector<torch::Tensor>& outputs,
                  const std::vector<torch::Tensor>& inputs) const;
  void barrier() const;

  // Asynchronous forms of these calls. Work::result() has the tensors that the
  // forms above return or write to.
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
  /// Same, but asynchronous. Calls `add` at once. The Work covers all of its
  /// calls.
  Work coalesce_async(const std::function<void(CoalescedCalls&)>& add) const;

  /// Sends `tensor` to another rank, which calls recv() or recv_any() with a
  /// tensor of the same type and size. May wait for that call, so two ranks
  /// that both send first may wait for each other. isend() does not wait.
  void send(const torch::Tensor& tensor, int to, int tag = 0) const;
  void recv(torch::Tensor& tensor, int from, int tag = 0) const;
  /// Receives the first message with the tag from any rank, and returns that
  /// rank.
  int recv_any(torch::Tensor& tensor, int tag = 0) const;
  // Asynchronous forms of these calls. Collectives do not wait for messages,
  // and messages do not wait for collectives.
  Work isend(const torch::Tensor& tensor, int to, int tag = 0) const;
  Work irecv(const torch::Tensor& tensor, int from, int tag = 0) const;
  /// Same as recv_any(). Work::source_rank() returns the rank that sent.
  Work irecv_any(const torch::Tensor& tensor, int tag = 0) const;

  /// Returns the texts of all ranks, by rank. Meant for small and rare texts,
  /// such as names and reports.
  std::vector<std::string> all_gather_text(const std::string& text) const;

  /// Bytes that this rank's collectives over gloo have sent so far. 0 for other
  /// backends.
  int64_t sent_bytes() const;

  /// Returns whether the ranks can map each other's memory, as shared_memory()
  /// requires.
  bool can_share_memory() const;
  /// Allocates `bytes` of zeroed memory for each rank, which every rank can
  /// read and write. `bytes` may differ between ranks. There must be a
  /// barrier() between a write of one rank and a read of another. Throws
  /// CommError unless can_share_memory(). Collective.
  SharedMemory shared_memory(size_t bytes) const;

  /// Makes a world of `ranks`, which are ranks of this world, in that order.
  /// All ranks of this world must call it. Returns nothing on a rank that is
  /// not in `ranks`.
  std::optional<World> new_group(const std::vector<int>& ranks) const;

  /// Tells the other ranks that this one can't continue. Their waits fail with
  /// `reason`, if the backend supports that.
  void abort(const std::string& reason) const noexcept;

  class Impl;
  explicit World(std::shared_ptr<const Impl> impl);

 private:
  std::shared_ptr<const Impl> impl_;
};

/// Joins the world described by the environment of this process (see
/// environment.h). Every rank of the job must call it. Each call makes another
/// world. Throws CommError, and InvalidArgument for an invalid environment or
/// invalid options.
World init(const WorldOptions& options = {});

/// Joins the next attempt, in a rank that can continue after a CommError. Tells
/// the agent of `lockstep run` that started it `why` this attempt is over,
/// waits until the agent has replaced the ranks that ended, and joins the world
/// of all ranks. Must be called when nothing of the former world exists any
/// more. The rank and the size may change.
///
/// Returns nothing if there is no next attempt: there is no such agent, no
/// restart is left, or `stop` returned true.
std::optional<World> init_next(const WorldOptions& options,
                               const std::string& why,
                               const std::function<bool()>& stop = {});

/// Runs `task` once for each of `ranks` ranks, each in its own thread, and
/// waits for all of them. If a rank throws, the waits of the other ranks end.
/// When all have ended, the first exception (in time) is rethrown. The ranks
/// share the cores of this process equally, as slices do.
void spawn(int ranks, const std::function<void(World)>& task,
           const WorldOptions& options = {});

}  // namespace lockstep
