#include "lockstep/comm/work_queue.h"

#include <utility>

#include <ATen/core/ivalue.h>
#include <c10/core/InferenceMode.h>
#include <torch/torch.h>

namespace lockstep {

c10::intrusive_ptr<c10::ivalue::Future> QueuedWork::getFuture() {
  const std::lock_guard lock(mutex_);
  if (!future_) {
    future_ = c10::make_intrusive<c10::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()));
    if (completed_ && exception_) {
      future_->setError(exception_);
    } else if (completed_) {
      future_->markCompleted(c10::IValue(outputs_));
    }
  }
  return future_;
}

void QueuedWork::run(const std::function<void()>& task) {
  std::exception_ptr failure;
  try {
    const torch::NoGradGuard no_grad;
    task();
  } catch (...) {
    failure = std::current_exception();
  }
  finish(failure);
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    const std::lock_guard lock(mutex_);
    future = future_;
  }
  // Not under the lock: its callbacks may ask for this work.
  if (!future || future->completed()) return;
  if (failure) {
    future->setError(failure);
  } else {
    future->markCompleted(c10::IValue(outputs_));
  }
}

WorkQueue::~WorkQueue() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

c10::intrusive_ptr<QueuedWork> WorkQueue::submit(
    c10::intrusive_ptr<QueuedWork> work, std::function<void()> task,
    bool is_async) {
  std::unique_lock lock(mutex_);
  if (!is_async && items_.empty() && !is_busy_) {
    is_busy_ = true;
    lock.unlock();
    work->run(task);
    lock.lock();
    is_busy_ = false;
    if (!items_.empty()) changed_.notify_all();
    return work;
  }
  items_.push_back({work, std::move(task)});
  if (!thread_.joinable()) thread_ = std::thread([this] { run_items(); });
  changed_.notify_all();
  return work;
}

void WorkQueue::run_items() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(
        lock, [&] { return !is_busy_ && (!items_.empty() || is_stopping_); });
    if (items_.empty()) return;
    const Item item = std::move(items_.front());
    items_.pop_front();
    is_busy_ = true;
    lock.unlock();
    item.work->run(item.task);
    lock.lock();
    is_busy_ = false;
  }
}

}  // namespace lockstep
