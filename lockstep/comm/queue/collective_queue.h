#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/comm/collectives/collectives.h"
#include "lockstep/comm/queue/call_factory.h"
#include "lockstep/comm/queue/communicator.h"
#include "lockstep/comm/queue/work_queue.h"

namespace lockstep {

/// Runs the calls of a World over shm or gloo. A call that its caller waits for
/// runs in the caller's thread if nothing is queued before it. All other calls
/// run in the thread of a WorkQueue. Counts the collectives, and shows them to
/// a profiler ("shm:all_reduce").
class CollectiveQueue : public Communicator {
 public:
  using Timeout = std::chrono::milliseconds;
  enum class Mode { kSync, kAsync };

  /// `timeout` applies to each call.
  CollectiveQueue(std::unique_ptr<Collectives> collectives, int rank, int size,
                  Timeout timeout);

  std::string name() const override { return collectives_->name(); }
  void run(const CollectiveCall& call) override;
  WorkPtr begin(CollectiveCall call) override;
  WorkPtr send(const at::Tensor& tensor, int to, int tag) override;
  WorkPtr recv(const at::Tensor& tensor, int from, int tag) override;
  WorkPtr recv_any(const at::Tensor& tensor, int tag) override;
  int64_t sent_bytes() const override { return collectives_->sent_bytes(); }
  SharedMemory share(size_t bytes) override;
  void abort(const std::string& reason) noexcept override {
    collectives_->abort(reason);
  }

  /// Submits a call. A call that the caller waits for (kSync) may already be
  /// done when this returns. If it failed, wait() of the result throws the
  /// error.
  c10::intrusive_ptr<QueuedWork> submit(CollectiveCall call, Mode mode,
                                        Timeout timeout);

  /// Runs c10d's monitoredBarrier, which does not wait for queued calls.
  void monitored_barrier(Timeout timeout, bool wait_all_ranks) {
    collectives_->monitored_barrier(timeout, wait_all_ranks);
  }
  bool can_share_memory() const { return collectives_->can_share_memory(); }
  const CallFactory& calls() const { return calls_; }
  Timeout timeout() const { return timeout_; }
  void set_timeout(Timeout timeout) { timeout_ = timeout; }
  /// Returns the number of the next collective. Each rank counts its
  /// collectives from 0.
  uint64_t sequence_number() const { return sequence_number_; }

 private:
  uint64_t take_number();
  c10::intrusive_ptr<QueuedWork> submit_as(uint64_t number, CollectiveCall call,
                                           Mode mode, Timeout timeout);

  int rank_;
  CallFactory calls_;
  std::atomic<Timeout> timeout_;
  std::atomic<uint64_t> sequence_number_ = 0;
  std::unique_ptr<Collectives> collectives_;
  WorkQueue queue_;  // destroyed first: its operations use the others
};

}  // namespace lockstep
