#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>

namespace lockstep {

/// An operation that a WorkQueue does. Its future holds `outputs`.
class QueuedWork : public c10d::Work {
 public:
  QueuedWork(int rank, c10d::OpType type, std::vector<at::Tensor> outputs)
      : Work(rank, type), outputs_(std::move(outputs)) {}

  std::vector<at::Tensor> result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

  /// Does `task`; what it throws is rethrown by wait().
  void run(const std::function<void()>& task);

 private:
  std::vector<at::Tensor> outputs_;
  // Made when it is asked for: it costs more than a small all-reduce.
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

/// Does a rank's operations in the order in which they are submitted: those
/// that the caller waits for in its own thread, if nothing is before them, and
/// the others in a thread of the queue, which is started when it is needed.
class WorkQueue {
 public:
  WorkQueue() = default;
  /// Does first what is still in the queue.
  ~WorkQueue();
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  c10::intrusive_ptr<QueuedWork> submit(c10::intrusive_ptr<QueuedWork> work,
                                        std::function<void()> task,
                                        bool is_async);

 private:
  struct Item {
    c10::intrusive_ptr<QueuedWork> work;
    std::function<void()> task;
  };
  void run_items();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> items_;
  bool is_busy_ = false;
  bool is_stopping_ = false;
  std::thread thread_;
};

}  // namespace lockstep
