#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "lockstep/base/home_process.h"
#include "lockstep/comm/call_checks.h"
#include "lockstep/comm/queued_work.h"
#include "lockstep/comm/shared_memory.h"
#include "lockstep/comm/torch_backend.h"
#include "lockstep/comm/work_queue.h"
#include "lockstep/tcp/channel.h"
#include "lockstep/transport/transport.h"

namespace lockstep {

/// The ranks of a group as c10d's interface: checks the arguments of a call,
/// makes the tensors dense, describes the call to the other ranks, and finds
/// the kernel of a reduction. A transport::Transport moves the bytes, and a
/// tcp::Channel carries messages. Tensors on another device are copied to the
/// host and back.
///
/// A reduction combines the elements of all ranks along the tree of
/// tree_reduce.h, which gives the same bits on every rank and over every
/// transport.
///
/// All ranks make the same collective calls in the same order, each from one
/// thread at a time. A call with asyncOp false that finds nothing queued runs
/// in the caller's thread and returns null: it is done, or has thrown. All
/// other calls run in the thread of a WorkQueue. Calls are counted, and shown
/// to a profiler ("shm:all_reduce"). Arguments are checked before anything is
/// sent.
///
/// Throws InvalidArgument for invalid arguments, and CommError for ranks that
/// die, stall or call something else, and in a child of the rank's process.
class HostBackend final : public TorchBackend {
 public:
  using Timeout = std::chrono::milliseconds;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;
  using Lists = std::vector<Tensors>;
  /// Connects the ranks that meet in a store, which no other group uses.
  using Connect = std::function<c10::intrusive_ptr<c10d::Backend>(
      const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
      Timeout timeout)>;
  /// Calls its argument, which waits for threads and connections.
  using AroundEnd = std::function<void(const std::function<void()>& end)>;

  /// `door` is that of the rank's messages. `store` is one that no other group
  /// uses. A group of one rank needs neither. `device_type` is that of the
  /// tensors; without a value, any device is allowed. `timeout` applies to each
  /// call that has no other.
  HostBackend(std::unique_ptr<transport::Transport> bytes, tcp::Door door,
              c10::intrusive_ptr<c10d::Store> store, int rank, int size,
              std::optional<c10::DeviceType> device_type, Timeout timeout);
  /// In a child of this process, frees nothing: the threads do not exist there,
  /// and the other ends of the connections must not notice the child.
  ~HostBackend() override;

  // For the module for Python. Must be called before the first call.
  /// Sets the name with which titles for a profiler begin.
  void set_name(std::string name) { name_ = std::move(name); }
  /// Lets split() make backends of some of the ranks with `connect`.
  void set_connect(Connect connect) { connect_ = std::move(connect); }
  void set_around_end(AroundEnd around) { around_end_ = std::move(around); }

  const std::string getBackendName() const override { return name_; }
  c10::intrusive_ptr<Options> getBackendOptions() override;
  Timeout timeout() const { return timeout_; }
  void setTimeout(Timeout timeout) override { timeout_ = timeout; }
  // Each rank counts its collectives from 0.
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return sequence_number_; }

  bool supportsSplitting() const override { return connect_ != nullptr; }
  c10::intrusive_ptr<Backend> split(
      const c10::intrusive_ptr<c10d::Store>& store,
      const std::vector<int>& ranks,
      const c10::intrusive_ptr<Options>& options) override;

  WorkPtr broadcast(Tensors& tensors,
                    const c10d::BroadcastOptions& options) override;
  /// Takes one dense tensor, or one sparse tensor (COO) on the host, which can
  /// be summed and averaged.
  WorkPtr allreduce(Tensors& tensors,
                    const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_sparse(Tensors& tensors,
                           const c10d::AllreduceOptions& options) override;
  /// Reduces one tensor after another.
  WorkPtr allreduce_coalesced(
      Tensors& tensors,
      const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(Lists& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(Lists& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(
      Tensors& outputs, Tensors& inputs,
      const c10d::AllgatherOptions& options) override;
  WorkPtr gather(Lists& outputs, Tensors& inputs,
                 const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, Lists& inputs,
                  const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, Lists& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input,
      const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(
      Tensors& outputs, Tensors& inputs,
      const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs,
                   const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input,
                        std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const c10d::AllToAllOptions& options) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;
  /// Names the ranks that do not arrive in time, all of them or the first. Does
  /// not wait for queued calls.
  void monitoredBarrier(const c10d::BarrierOptions& options,
                        bool wait_all_ranks) override;

  // Messages. Any number may be in flight at once, from any threads and during
  // collectives. The tensor must not change before the Work is done. Messages
  // of one sender with one tag arrive in the order in which they were sent.
  // Their Work has no future.
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  /// Receives the message that arrives first, from any rank. The Work's
  /// sourceRank() returns that rank.
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

  /// Allocates a tensor that allreduce() does not have to copy, if the ranks
  /// share memory. Collective: c10d's Reducer calls it on all ranks with the
  /// same size.
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;
  /// `device` is -1 for the CPU. The same group may use NCCL for GPUs.
  bool supportsTensorAlloc(c10::DeviceIndex device) override {
    return device < 0 && can_share_memory();
  }

  // Functions that c10d does not have.
  bool can_share_memory() const;
  /// Allocates memory of each rank, which all ranks map. Collective.
  SharedMemory share(size_t bytes);
  int64_t sent_bytes() const { return bytes_->sent_bytes(); }
  /// Makes the other ranks' waits fail with `reason`, if possible.
  void give_up(const std::string& reason) noexcept;
  /// Throws CommError in a child of the process whose rank this is.
  void check_home() const;

 private:
  using MessagePtr = c10::intrusive_ptr<MessageWork>;

  CallChecks checks(const char* operation) const {
    return {operation, getRank(), getSize(), device_type_};
  }
  Timeout timeout_of(Timeout timeout) const {
    return timeout == c10d::kUnsetTimeout ? timeout_.load() : timeout;
  }
  uint64_t take_number();
  /// Returns a title in the style of ProcessGroupGloo: "tcp:all_reduce".
  std::string title_of(c10d::OpType type) const;

  /// Runs `act`, a function of a Moves and of the two lists, as a call. Copies
  /// the lists and `act` only if the call has to wait.
  template <class CallOptions, class Act>
  WorkPtr run(c10d::OpType type, at::TensorList outputs, at::TensorList inputs,
              const CallOptions& options, const Act& act);

  /// Several calls in one. In each output or input, the parts of the ranks
  /// follow each other.
  WorkPtr all_gather_into(at::TensorList outputs, at::TensorList inputs,
                          const c10d::AllgatherOptions& options);
  WorkPtr reduce_scatter_from(at::TensorList outputs, at::TensorList inputs,
                              const c10d::ReduceScatterOptions& options);

  MessagePtr new_message(c10d::OpType type, const at::Tensor& tensor) const;
  WorkPtr receive(c10d::OpType type, const at::Tensor& tensor, int from,
                  int tag);
  /// Throws InvalidArgument in a group of one rank.
  tcp::Channel& messages() const;
  void wait_for_arrivals(uint32_t number, Timeout timeout, bool wait_all_ranks);
  void arrive(uint32_t number, Timeout timeout);
  /// Waits until `peer` has set a key of the store. Returns false if that takes
  /// until `deadline`, or if the rank has ended.
  bool has_set(int peer, const std::string& key,
               std::chrono::steady_clock::time_point deadline) const;

  const HomeProcess home_;
  const std::optional<c10::DeviceType> device_type_;
  std::string name_;
  Connect connect_;
  AroundEnd around_end_;
  std::atomic<Timeout> timeout_;
  std::atomic<uint64_t> sequence_number_ = 0;
  std::atomic<uint32_t> monitored_barriers_ = 0;
  const c10::intrusive_ptr<c10d::Store> store_;
  // Used by those after it, which are destroyed first.
  std::unique_ptr<transport::Transport> bytes_;
  std::unique_ptr<tcp::Channel> messages_;
  std::unique_ptr<WorkQueue> queue_;
};

}  // namespace lockstep
