#include "lockstep/comm/work_queue.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/start_thread.h"
#include "lockstep/base/wait_until.h"

namespace lockstep {

class WorkQueue::Impl : public std::enable_shared_from_this<Impl> {
 public:
  using Clock = std::chrono::steady_clock;

  c10::intrusive_ptr<QueuedWork> submit(c10::intrusive_ptr<QueuedWork> work,
                                        std::function<void()> task,
                                        bool is_async, Milliseconds timeout) {
    std::unique_lock lock(mutex_);
    if (failure_) {
      lock.unlock();
      work->run([&] { std::rethrow_exception(failure_); });
      return work;
    }
    if (is_own_thread()) {
      lock.unlock();
      run(*work, task);
      return work;
    }
    if (!is_async && items_.empty() && !is_busy_) {
      is_busy_ = true;
      lock.unlock();
      work->run(task);
      lock.lock();
      is_busy_ = false;
      if (!items_.empty()) changed_.notify_all();
      return work;
    }
    if (!thread_.joinable()) {
      thread_ =
          start_thread("comm", "a rank's asynchronous operations",
                       [self = shared_from_this()] { self->run_items(); });
    }
    items_.push_back({work, std::move(task), timeout, Clock::now()});
    if (is_in_callback_) need_watch();
    changed_.notify_all();
    return work;
  }

  bool run_if_idle(c10::function_ref<void()> task) {
    std::unique_lock lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
    if (is_own_thread() || is_busy_ || !items_.empty()) return false;
    is_busy_ = true;
    lock.unlock();
    const auto end_turn = [&] {
      lock.lock();
      is_busy_ = false;
      if (!items_.empty()) changed_.notify_all();
    };
    try {
      const torch::NoGradGuard no_grad;
      task();
    } catch (...) {
      end_turn();
      throw;
    }
    end_turn();
    return true;
  }

  void help_with(QueuedWork& work) {
    std::unique_lock lock(mutex_);
    const auto is_queued = [&] {
      return std::any_of(items_.begin(), items_.end(), [&](const Item& item) {
        return item.work.get() == &work;
      });
    };
    while (is_queued()) run_first(lock);
  }

  void on_failure(std::function<void(const std::string&)> act) {
    const std::lock_guard lock(mutex_);
    on_failure_ = std::move(act);
  }

  void stop() {
    {
      std::unique_lock lock(mutex_);
      is_stopping_ = true;
      if (is_own_thread()) {
        while (!items_.empty()) run_first(lock);
      }
    }
    changed_.notify_all();
    end(thread_);
    end(watch_thread_);
  }

  /// Returns the queue that owns this thread.
  static Impl* current() { return current_; }

 private:
  struct Item {
    c10::intrusive_ptr<QueuedWork> work;
    std::function<void()> task;
    Milliseconds timeout;
    Clock::time_point submitted;
  };

  bool is_own_thread() const { return current_ == this; }

  void run_items() {
    current_ = this;
    std::unique_lock lock(mutex_);
    for (;;) {
      wait_until(changed_, lock, [&] {
        return !is_busy_ && (!items_.empty() || is_stopping_);
      });
      if (items_.empty()) return;
      is_busy_ = true;
      run_first(lock);
      is_in_callback_ = false;
      is_busy_ = false;
    }
  }

  /// Runs the first operation of the queue, without holding `lock`.
  void run_first(std::unique_lock<std::mutex>& lock) {
    {
      const Item item = std::move(items_.front());
      items_.pop_front();
      lock.unlock();
      run(*item.work, item.task);
      // The task's contents are destroyed here without the lock, because they
      // may include this queue.
    }
    lock.lock();
  }

  /// Performs `task` and runs the callbacks. Called in the queue's thread.
  void run(QueuedWork& work, const std::function<void()>& task) {
    // Only this thread writes the flag.
    const bool was_in_callback = is_in_callback_;
    if (was_in_callback) set_in_callback(false);
    work.perform(task);
    if (was_in_callback || work.has_pending_future()) set_in_callback(true);
    work.complete_future();
  }

  void set_in_callback(bool is_in_callback) {
    const std::lock_guard lock(mutex_);
    is_in_callback_ = is_in_callback;
    if (is_in_callback) {
      ++entries_;
      in_callback_since_ = Clock::now();
      if (!items_.empty()) need_watch();
    }
    if (watch_thread_.joinable()) changed_.notify_all();
  }

  void need_watch() {
    if (watch_thread_.joinable()) return;
    try {
      watch_thread_ =
          start_thread("comm", "the deadline of callbacks",
                       [self = shared_from_this()] { self->watch(); });
    } catch (const Error& error) {
      log_warning("comm", text_of(error));
    }
  }

  void watch() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wait_until(changed_, lock, [&] {
        return is_stopping_ || (is_in_callback_ && !items_.empty() &&
                                items_.front().timeout > Milliseconds(0));
      });
      if (is_stopping_) return;
      const uint64_t entry = entries_;
      const auto deadline =
          std::max(in_callback_since_, items_.front().submitted) +
          items_.front().timeout;
      const auto has_moved_on = [&] {
        return is_stopping_ || !is_in_callback_ || entries_ != entry ||
               items_.empty();
      };
      if (!changed_.wait_until(lock, deadline, has_moved_on)) fail_items(lock);
    }
  }

  void fail_items(std::unique_lock<std::mutex>& lock) {
    const CommError error(
        {.code = ErrorCode::kCollectiveFailed,
         .what = fmt::format(
             "{} timed out in the queue behind a callback of a future",
             c10d::opTypeToString(items_.front().work->retrieveOpType())),
         .expected = fmt::format(
             "that callback to return within {} s",
             static_cast<double>(items_.front().timeout.count()) / 1e3),
         .fix = "wait in a callback only for what it has submitted itself"});
    failure_ = std::make_exception_ptr(error);
    std::deque<Item> failed;
    failed.swap(items_);
    const auto tell = on_failure_;
    lock.unlock();
    if (tell) tell(text_of(error));
    for (const Item& item : failed) {
      item.work->run([&] { std::rethrow_exception(failure_); });
    }
    failed.clear();
    lock.lock();
  }

  static void end(std::thread& thread) {
    if (!thread.joinable()) return;
    // A callback in this thread destroys the queue, so the thread ends after
    // the callback.
    if (thread.get_id() == std::this_thread::get_id()) {
      thread.detach();
    } else {
      thread.join();
    }
  }

  static thread_local Impl* current_;

  std::mutex mutex_;  // guards all members below
  std::condition_variable changed_;
  std::deque<Item> items_;
  bool is_busy_ = false;
  bool is_stopping_ = false;
  std::exception_ptr failure_;
  std::function<void(const std::string&)> on_failure_;
  bool is_in_callback_ = false;
  uint64_t entries_ = 0;  // number of times that callbacks were entered
  Clock::time_point in_callback_since_;
  std::thread thread_;
  std::thread watch_thread_;
};

thread_local WorkQueue::Impl* WorkQueue::Impl::current_ = nullptr;

WorkQueue::WorkQueue() : impl_(std::make_shared<Impl>()) {}
WorkQueue::~WorkQueue() { impl_->stop(); }

void WorkQueue::on_failure(std::function<void(const std::string&)> act) {
  impl_->on_failure(std::move(act));
}

c10::intrusive_ptr<QueuedWork> WorkQueue::submit(
    c10::intrusive_ptr<QueuedWork> work, std::function<void()> task,
    bool is_async, Milliseconds timeout) {
  return impl_->submit(std::move(work), std::move(task), is_async, timeout);
}

bool WorkQueue::run_if_idle(c10::function_ref<void()> task) {
  return impl_->run_if_idle(task);
}

void WorkQueue::help_with(QueuedWork& work) {
  if (Impl* const queue = Impl::current()) queue->help_with(work);
}

}  // namespace lockstep
