#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "lockstep/comm/call_checks.h"
#include "lockstep/comm/collectives.h"
#include "lockstep/comm/work_queue.h"

namespace lockstep {

/// Collectives as a backend of c10d, with its asynchronous Work and futures.
///
/// What the caller waits for (asyncOp false) is done in its own thread, unless
/// something is queued before it. What a caller passes is checked at the call
/// (CallChecks). docs/collectives.md has the algorithms.
class QueuedBackend : public c10d::Backend {
 public:
  using Work = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;
  using Lists = std::vector<Tensors>;

  QueuedBackend(std::unique_ptr<Collectives> collectives, int rank, int size,
                std::chrono::milliseconds timeout);

  /// Collective: memory of each rank, mapped by all (World::shared_memory).
  SharedMemory share(size_t bytes);
  /// Ends the others' waits with `reason`.
  void fail(const std::string& reason) noexcept { collectives_->fail(reason); }

  const std::string getBackendName() const override {
    return collectives_->name();
  }
  c10::intrusive_ptr<Options> getBackendOptions() override;
  bool supportsCoalescing() const override { return true; }
  // Operations are done in order, so the last one's end is that of all.
  void startCoalescing() override {}
  Work endCoalescing() override;
  void setTimeout(std::chrono::milliseconds timeout) override {
    timeout_ = timeout;
  }
  // Of collectives, from 0: each rank counts its own.
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return sequence_number_; }
  /// Where ranks share memory: a tensor that all_reduce() need not copy.
  /// Collective, as c10d's Reducer calls it: by all ranks, for one size.
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;
  bool supportsTensorAlloc(c10::DeviceIndex) override {
    return collectives_->can_share_memory();
  }

  Work broadcast(Tensors& tensors, const c10d::BroadcastOptions&) override;
  /// Of a dense tensor, or of a sparse one (COO): sum and average.
  Work allreduce(Tensors& tensors, const c10d::AllreduceOptions&) override;
  Work allreduce_sparse(Tensors& tensors,
                        const c10d::AllreduceOptions&) override;
  /// As if all were put into one tensor, which is reduced and copied back: a
  /// tensor that is listed twice is summed once.
  Work allreduce_coalesced(Tensors& tensors,
                           const c10d::AllreduceCoalescedOptions&) override;
  Work reduce(Tensors& tensors, const c10d::ReduceOptions&) override;
  Work allgather(Lists& outputs, Tensors& inputs,
                 const c10d::AllgatherOptions&) override;
  Work _allgather_base(at::Tensor& output, at::Tensor& input,
                       const c10d::AllgatherOptions&) override;
  Work allgather_coalesced(Lists& outputs, Tensors& inputs,
                           const c10d::AllgatherOptions&) override;
  Work allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                       const c10d::AllgatherOptions&) override;
  Work gather(Lists& outputs, Tensors& inputs,
              const c10d::GatherOptions&) override;
  Work scatter(Tensors& outputs, Lists& inputs,
               const c10d::ScatterOptions&) override;
  Work reduce_scatter(Tensors& outputs, Lists& inputs,
                      const c10d::ReduceScatterOptions&) override;
  Work _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                            const c10d::ReduceScatterOptions&) override;
  Work reduce_scatter_tensor_coalesced(
      Tensors& outputs, Tensors& inputs,
      const c10d::ReduceScatterOptions&) override;
  Work alltoall_base(at::Tensor& output, at::Tensor& input,
                     std::vector<int64_t>& output_splits,
                     std::vector<int64_t>& input_splits,
                     const c10d::AllToAllOptions&) override;
  Work alltoall(Tensors& outputs, Tensors& inputs,
                const c10d::AllToAllOptions&) override;
  Work barrier(const c10d::BarrierOptions&) override;
  // These wait for nothing that is queued, and nothing waits for them.
  void monitoredBarrier(const c10d::BarrierOptions&,
                        bool wait_all_ranks) override;
  Work send(Tensors& tensors, int to, int tag) override;
  Work recv(Tensors& tensors, int from, int tag) override;
  Work recvAnysource(Tensors& tensors, int tag) override;

 private:
  using Timeout = std::chrono::milliseconds;

  CallChecks checks(const char* operation) const {
    return {operation, getRank(), getSize()};
  }
  Timeout timeout_of(Timeout timeout) const;
  /// Queues `task`, which gets the timeout that the options say.
  template <typename CallOptions, typename Task>
  Work submit(c10d::OpType type, Tensors outputs, const CallOptions& options,
              Task task) {
    const Timeout timeout = timeout_of(options.timeout);
    return submit_task(
        type, std::move(outputs), options.asyncOp, timeout,
        [task = std::move(task), timeout]() mutable { task(timeout); });
  }
  Work submit_task(c10d::OpType type, Tensors outputs, bool is_async,
                   Timeout timeout, std::function<void()> task);

  Timeout timeout_;
  std::atomic<uint64_t> sequence_number_ = 0;
  std::unique_ptr<Collectives> collectives_;
  WorkQueue queue_;  // last, so that what it does ends first
};

}  // namespace lockstep
