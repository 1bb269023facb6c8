#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>

namespace lockstep {

/// An operation that is done by a WorkQueue. Its future has `outputs` as value.
class QueuedWork : public c10d::Work {
 public:
  /// `title` is what a profiler shows ("shm:reduce").
  QueuedWork(int rank, c10d::OpType type, std::vector<at::Tensor> outputs,
             const char* title = nullptr, uint64_t sequence_number = 0);

  std::vector<at::Tensor> result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  /// If it is called in a callback that a WorkQueue runs, it first does what is
  /// in that queue up to this operation, because no other thread would. Throws
  /// CommError if the operation is not done at the `timeout`; the operation
  /// itself goes on then.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  uint64_t getSequencenumber() const override { return sequence_number_; }

  /// Does `task`. If it throws, wait() rethrows that. The future is completed
  /// by complete_future().
  void perform(const std::function<void()>& task);
  /// For an operation that is done: whether its future was asked for before
  /// that, so that complete_future() may run callbacks.
  bool has_pending_future() const;
  /// Runs the future's callbacks in this thread.
  void complete_future();
  void run(const std::function<void()>& task) {
    perform(task);
    complete_future();
  }

 private:
  const std::vector<at::Tensor> outputs_;
  const uint64_t sequence_number_;
  // Made when it is asked for: it costs more than a small all-reduce.
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace lockstep
