#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "lockstep/comm/collectives.h"
#include "lockstep/comm/work_queue.h"

namespace lockstep {

/// Collectives as a backend of c10d, with its asynchronous Work and futures.
///
/// What the caller waits for (asyncOp false) is done in its own thread, unless
/// something is queued before it. docs/collectives.md has the algorithms.
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
  bool supportsCoalescing() const override { return true; }
  // Operations are done in order, so the last one's end is that of all.
  void startCoalescing() override {}
  Work endCoalescing() override;
  void setTimeout(std::chrono::milliseconds timeout) override {
    timeout_ = timeout;
  }

  Work broadcast(Tensors& tensors, const c10d::BroadcastOptions&) override;
  Work allreduce(Tensors& tensors, const c10d::AllreduceOptions&) override;
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
  Work send(Tensors& tensors, int to, int tag) override;
  Work recv(Tensors& tensors, int from, int tag) override;
  Work recvAnysource(Tensors& tensors, int tag) override;

 private:
  using Timeout = std::chrono::milliseconds;

  Timeout timeout_of(Timeout timeout) const;
  Work submit(c10d::OpType type, Tensors outputs, bool is_async,
              std::function<void()> task);

  Timeout timeout_;
  std::unique_ptr<Collectives> collectives_;
  WorkQueue queue_;  // last, so that what it does ends first
};

}  // namespace lockstep
