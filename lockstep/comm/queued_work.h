#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "lockstep/comm/dense.h"

namespace lockstep {

/// An operation as a profiler shows it. It is not shown without a title.
struct ProfilerEvent {
  std::string title;  ///< "shm:reduce"
  std::vector<at::Tensor> inputs;
};

/// An operation run by a WorkQueue. The value of its future is `outputs`.
class QueuedWork : public c10d::Work {
 public:
  QueuedWork(int rank, c10d::OpType type, std::vector<at::Tensor> outputs,
             uint64_t sequence_number = 0, const ProfilerEvent& event = {});

  std::vector<at::Tensor> result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  /// Waits for the operation. In a callback run by a WorkQueue, first runs the
  /// operations in that queue up to this one, because no other thread would.
  /// Throws CommError if the operation is not done within `timeout`. The
  /// operation itself then continues.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  uint64_t getSequencenumber() const override { return sequence_number_; }

  /// Runs `task`. If it throws, wait() rethrows the exception.
  /// complete_future() then completes the future.
  void perform(const std::function<void()>& task);
  /// Returns, for an operation that is done, whether its future was requested
  /// before that. If so, complete_future() may run callbacks.
  bool has_pending_future() const;
  /// Runs the future's callbacks in this thread.
  void complete_future();
  void run(const std::function<void()>& task) {
    perform(task);
    complete_future();
  }

 private:
  void complete(c10::ivalue::Future& future,
                const std::exception_ptr& error) const;

  const std::vector<at::Tensor> outputs_;
  const uint64_t sequence_number_;
  // Made on demand, because it costs more than a small all-reduce.
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

/// A send or receive of a HostBackend. Keeps the tensor alive. If the tensor
/// has gaps in memory, the received data is copied into it at the end.
class MessageWork : public QueuedWork {
 public:
  MessageWork(int rank, c10d::OpType type, const at::Tensor& tensor,
              const ProfilerEvent& event)
      : QueuedWork(rank, type, {tensor}, 0, event), dense_(tensor) {}

  /// The bytes that are sent, or the memory that receives.
  std::span<std::byte> bytes() const { return dense_.bytes(); }
  /// Returns the rank that sent, for a receive that is done.
  int sourceRank() const override;
  /// Throws InvalidArgument, as messages over Gloo do.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

  /// Called by the backend when the message was transferred, or when it failed
  /// (`error`).
  void end(const std::exception_ptr& error, int source);

 private:
  Result dense_;
  int source_ = -1;
};

}  // namespace lockstep
