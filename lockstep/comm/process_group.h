#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/arg.h>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/types.h>

#include "lockstep/comm/environment.h"
#include "lockstep/comm/shared_memory.h"
#include "lockstep/comm/work.h"
#include "lockstep/device/links/link.h"

namespace c10d {
class Backend;
}

namespace lockstep {

using ReduceOp = c10d::ReduceOp;

/// Options for the connection between ranks, as in
/// `ProcessGroupOptions().backend("tcp")`.
struct ProcessGroupOptions {
  /// "auto", "shm", "tcp", "nccl" or the name of a registered backend. "auto"
  /// is the backend for `device_type` (nccl for GPUs). On CPU, and for devices
  /// without a backend, it is shm if the ranks find that all of them are on one
  /// host, and tcp otherwise. shm and tcp copy tensors on devices to the host
  /// and back. "gloo" is the former name of tcp.
  TORCH_ARG(std::string, backend) = "auto";
  /// Limit of each wait, for the other ranks to arrive and for each collective.
  TORCH_ARG(std::chrono::milliseconds, timeout){300'000};
  /// Device type of the ranks' tensors.
  TORCH_ARG(torch::DeviceType, device_type) = torch::kCPU;
  /// Backends for devices: action to take if copies between this host's devices
  /// arrive corrupted.
  TORCH_ARG(BadLinks, bad_links) = BadLinks::kStage;
};

/// The ranks of a job, or some of them, and their collective operations. Copies
/// refer to the same group. All ranks of the group must call a collective, in
/// the same order. In a group of one rank, it completes at once.
///
/// Tensors are on the host or, with that `device_type`, on this rank's GPU.
/// They may have gaps, except over a backend for devices.
///
/// A call returns when the result is ready. With `async_op`, it returns at once
/// instead, and the Work is done when the result is ready. Calls of both kinds
/// run in the order in which they are made. Every wait ends at the timeout.
///
/// Calls throw InvalidArgument, before anything is sent, for invalid arguments
/// (a root that is not a rank, tensors that don't match). They throw CommError
/// for a rank that died, stalled or called something else. With `async_op`,
/// Work::wait() throws it.
class ProcessGroup {
 public:
  ProcessGroup();  ///< a group of one rank
  int rank() const;
  int size() const;
  int local_rank() const;  ///< among the ranks on this host
  int local_size() const;
  bool is_one_host() const { return local_size() == size(); }
  /// "shm", "tcp", "nccl"; "none" in a group of one rank.
  std::string backend_name() const;
  /// Returns whether sums add the ranks along a tree (docs/collectives.md),
  /// which gives the same bits on every rank and over each such backend: shm
  /// and tcp do. Other backends have their own order.
  bool sums_along_tree() const;
  /// The store in which the ranks met. Null in a group of one rank.
  const c10::intrusive_ptr<c10d::Store>& store() const;
  /// The limit of each wait. 0 in a group of one rank.
  std::chrono::milliseconds timeout() const;
  /// Returns c10d's interface to the ranks, for c10d's own classes and for
  /// Python (torch/csrc/distributed/c10d/Backend.hpp). Its calls and those of
  /// the group run in the order in which they are made.
  c10::intrusive_ptr<c10d::Backend> backend() const;
  /// Returns the number of collectives that this rank has called. 0 in a group
  /// of one rank, and over a backend that does not count them.
  uint64_t sequence_number() const;

  /// Reduces in place, along a tree or in the backend's order
  /// (sums_along_tree()). train_step() sums along the tree over any backend.
  Work all_reduce(const torch::Tensor& tensor,
                  const ReduceOp& op = ReduceOp::SUM,
                  bool async_op = false) const;
  /// Reduces in place. The result is defined on `root` only.
  Work reduce(const torch::Tensor& tensor, int root,
              const ReduceOp& op = ReduceOp::SUM, bool async_op = false) const;
  /// Copies `tensor` of `root` to that of every rank.
  Work broadcast(const torch::Tensor& tensor, int root,
                 bool async_op = false) const;
  /// Gathers the tensors of all ranks, by rank, in new tensors:
  /// Work::result(). `tensor` must have the same type and shape on all ranks.
  Work all_gather(const torch::Tensor& tensor, bool async_op = false) const;
  /// Same, into `outputs`, one for each rank. `tensor` may be the output of
  /// this rank.
  Work all_gather(const std::vector<torch::Tensor>& outputs,
                  const torch::Tensor& tensor, bool async_op = false) const;
  /// Same, into one tensor, in which the tensors of the ranks follow each
  /// other. Only its number of elements matters, not its shape.
  Work all_gather_into_tensor(const torch::Tensor& output,
                              const torch::Tensor& input,
                              bool async_op = false) const;
  /// Does the same as all_gather() on `root`. Other ranks get nothing.
  Work gather(const torch::Tensor& tensor, int root,
              bool async_op = false) const;
  /// Same, into `outputs`, which is empty on all ranks except `root`.
  Work gather(const std::vector<torch::Tensor>& outputs,
              const torch::Tensor& tensor, int root,
              bool async_op = false) const;
  /// Writes inputs[r] of `root` to `output` on rank r. The inputs of other
  /// ranks are not used.
  Work scatter(const torch::Tensor& output,
               const std::vector<torch::Tensor>& inputs, int root,
               bool async_op = false) const;
  /// Writes the reduction of inputs[rank()] of all ranks to `output`, which
  /// may be this rank's inputs[rank()].
  Work reduce_scatter(const torch::Tensor& output,
                      const std::vector<torch::Tensor>& inputs,
                      const ReduceOp& op = ReduceOp::SUM,
                      bool async_op = false) const;
  /// Same, from one tensor, in which the inputs for the ranks follow each
  /// other. Only its number of elements matters, not its shape.
  Work reduce_scatter_tensor(const torch::Tensor& output,
                             const torch::Tensor& input,
                             const ReduceOp& op = ReduceOp::SUM,
                             bool async_op = false) const;
  /// Writes inputs[rank()] of rank r to outputs[r]. Sizes may differ between
  /// pairs of ranks.
  Work all_to_all(const std::vector<torch::Tensor>& outputs,
                  const std::vector<torch::Tensor>& inputs,
                  bool async_op = false) const;
  /// Same, from and into one tensor. The splits are sizes along the first
  /// dimension, one for each rank. Without them, it is cut evenly.
  Work all_to_all_single(const torch::Tensor& output,
                         const torch::Tensor& input,
                         const std::vector<int64_t>& output_splits = {},
                         const std::vector<int64_t>& input_splits = {},
                         bool async_op = false) const;
  Work barrier(bool async_op = false) const;

  /// Gone. Make one call per tensor.
  template <class Add>
  Work coalesce(const Add&, bool = false) const {
    static_assert(sizeof(Add) == 0,
                  "coalesce() is gone; make one call per tensor, or copy small "
                  "tensors into one");
    return {};
  }

  /// Sends `tensor` to another rank, which calls recv() or recv_any() with a
  /// tensor of the same type and size. May wait for that call, so two ranks
  /// that both send first may wait for each other. isend() does not wait.
  void send(const torch::Tensor& tensor, int to, int tag = 0) const;
  void recv(const torch::Tensor& tensor, int from, int tag = 0) const;
  /// Receives the first message with the tag from any rank, and returns that
  /// rank.
  int recv_any(const torch::Tensor& tensor, int tag = 0) const;
  // Asynchronous forms of these calls. Collectives do not wait for messages,
  // and messages do not wait for collectives.
  Work isend(const torch::Tensor& tensor, int to, int tag = 0) const;
  Work irecv(const torch::Tensor& tensor, int from, int tag = 0) const;
  /// Same as recv_any(). Work::source_rank() returns the rank that sent.
  Work irecv_any(const torch::Tensor& tensor, int tag = 0) const;

  /// Returns the texts of all ranks, by rank. Meant for small and rare texts,
  /// such as names and reports.
  std::vector<std::string> all_gather_text(const std::string& text) const;

  /// Bytes that this rank's collectives over tcp have sent so far. 0 for other
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

  /// Makes a group of `ranks`, which are ranks of this group, in that order.
  /// All ranks of this group must call it. Returns nothing on a rank that is
  /// not in `ranks`.
  std::optional<ProcessGroup> new_group(const std::vector<int>& ranks) const;

  /// Tells the other ranks that this one can't continue. Their waits fail with
  /// `reason`, if the backend supports that.
  void abort(const std::string& reason) const noexcept;

  class Impl;
  explicit ProcessGroup(std::shared_ptr<const Impl> impl);

 private:
  template <class CallOptions>
  CallOptions options_for(bool async_op) const;
  template <class Begin>
  c10::intrusive_ptr<c10d::Work> call(c10d::OpType type,
                                      const torch::Tensor& place, bool async_op,
                                      const Begin& begin) const;
  template <class Begin>
  Work message(c10d::OpType type, const torch::Tensor& tensor,
               const Begin& begin) const;

  std::shared_ptr<const Impl> impl_;
};

/// Makes the c10d backend of one rank of a group. No other group uses `store`.
using BackendFactory = std::function<c10::intrusive_ptr<c10d::Backend>(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
    std::chrono::milliseconds timeout)>;

/// Registers a c10d backend that carries tensors on devices of `device_type`,
/// as torch.distributed.Backend.register_backend() does. Like NCCL, it must run
/// its calls in the order of the caller's streams. It is then the backend
/// "auto" for that type. Must be called before init(). Throws InvalidArgument
/// if the name or the type is taken ("nccl" is registered for CUDA).
///
///     lockstep::register_backend(
///         "xccl", torch::kXPU, [](auto& store, int rank, int size, auto) {
///           return c10::make_intrusive<c10d::ProcessGroupXCCL>(store, rank,
///                                                              size);
///         });
void register_backend(const std::string& name, torch::DeviceType device_type,
                      BackendFactory make);

/// Joins the group of all ranks of a job, described by the environment of this
/// process (see read_environment()). Every rank of the job must call it. Each
/// call makes another group. Throws CommError, and InvalidArgument for an
/// invalid environment or invalid options.
ProcessGroup init(const ProcessGroupOptions& options = {});

/// Joins the next attempt, in a rank that can continue after a CommError. Tells
/// the agent of `lockstep run` that started it `why` this attempt is over,
/// waits until the agent has replaced the ranks that ended, and joins the group
/// of all ranks. Must be called when nothing of the former group exists any
/// more. The rank and the size may change.
///
/// Returns nothing if there is no next attempt: there is no such agent, no
/// restart is left, or `stop` returned true.
std::optional<ProcessGroup> init_next(const ProcessGroupOptions& options,
                                      const std::string& why,
                                      const std::function<bool()>& stop = {});

/// Runs `task` once for each of `ranks` ranks, each in its own thread, and
/// waits for all of them. If a rank throws, the waits of the other ranks end.
/// When all have ended, the first exception (in time) is rethrown. The ranks
/// share the cores of this process equally, as slices do.
void spawn(int ranks, const std::function<void(ProcessGroup)>& task,
           const ProcessGroupOptions& options = {});

}  // namespace lockstep
