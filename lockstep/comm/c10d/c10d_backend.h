#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "lockstep/comm/queue/collective_queue.h"

namespace lockstep {

/// Exposes the calls of a World over shm or gloo as a c10d backend, for c10d's
/// classes, its Work and futures, and Python. Its calls and those of the World
/// go through one queue, in the order in which they are made.
class C10dBackend : public c10d::Backend {
 public:
  using Work = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;
  using Lists = std::vector<Tensors>;

  C10dBackend(std::shared_ptr<CollectiveQueue> queue, int rank, int size);

  const std::string getBackendName() const override { return queue_->name(); }
  c10::intrusive_ptr<Options> getBackendOptions() override;
  bool supportsCoalescing() const override { return true; }
  // Operations complete in order, so all are done when the last one is.
  void startCoalescing() override {}
  Work endCoalescing() override;
  void setTimeout(std::chrono::milliseconds timeout) override {
    queue_->set_timeout(timeout);
  }
  // Number of the next collective. Each rank counts its collectives from 0.
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override {
    return queue_->sequence_number();
  }
  /// Allocates a tensor that all_reduce() does not have to copy, if the ranks
  /// share memory. Collective: c10d's Reducer calls it on all ranks with the
  /// same size.
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;
  bool supportsTensorAlloc(c10::DeviceIndex) override {
    return queue_->can_share_memory();
  }

  Work broadcast(Tensors& tensors, const c10d::BroadcastOptions&) override;
  /// Takes one dense tensor, or one sparse tensor (COO), which can be summed
  /// and averaged.
  Work allreduce(Tensors& tensors, const c10d::AllreduceOptions&) override;
  Work allreduce_sparse(Tensors& tensors,
                        const c10d::AllreduceOptions&) override;
  /// Reduces as if all tensors were copied into one tensor, which is reduced
  /// and copied back. So a tensor that is listed twice is summed once.
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
  // Messages do not wait for queued calls, and queued calls do not wait for
  // them.
  void monitoredBarrier(const c10d::BarrierOptions&,
                        bool wait_all_ranks) override;
  Work send(Tensors& tensors, int to, int tag) override;
  Work recv(Tensors& tensors, int from, int tag) override;
  Work recvAnysource(Tensors& tensors, int tag) override;

 private:
  using Timeout = std::chrono::milliseconds;

  const CallFactory& calls() const { return queue_->calls(); }
  CallChecks checks(const char* operation) const {
    return calls().checks(operation);
  }
  Timeout timeout_of(Timeout timeout) const;
  /// Queues `call` with the timeout and the mode from the options.
  template <typename CallOptions>
  Work submit(CollectiveCall call, const CallOptions& options) {
    return queue_->submit(std::move(call),
                          options.asyncOp ? CollectiveQueue::Mode::kAsync
                                          : CollectiveQueue::Mode::kSync,
                          timeout_of(options.timeout));
  }

  std::shared_ptr<CollectiveQueue> queue_;
};

}  // namespace lockstep
