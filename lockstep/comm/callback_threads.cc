#include "lockstep/comm/callback_threads.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/start_thread.h"
#include "lockstep/base/wait_until.h"

namespace lockstep {

class CallbackThreads::Impl : public std::enable_shared_from_this<Impl> {
 public:
  void run(std::function<void()> callback) {
    std::unique_lock lock(mutex_);
    callbacks_.push_back(std::move(callback));
    if (callbacks_.size() <= idle_threads_) {
      changed_.notify_all();
      return;
    }
    try {
      start_thread("comm", "the callback of a message",
                   [self = shared_from_this()] { self->work(); })
          .detach();
      ++threads_;
    } catch (const Error& error) {
      log_warning("comm", text_of(error));
      const auto last = std::move(callbacks_.back());
      callbacks_.pop_back();
      lock.unlock();
      last();
    }
  }

  void stop() {
    std::unique_lock lock(mutex_);
    is_stopping_ = true;
    changed_.notify_all();
    const size_t remaining = current_ == this ? 1 : 0;
    wait_until(changed_, lock, [&] { return threads_ == remaining; });
  }

 private:
  void work() {
    current_ = this;
    std::unique_lock lock(mutex_);
    for (;;) {
      ++idle_threads_;
      wait_until(changed_, lock,
                 [&] { return !callbacks_.empty() || is_stopping_; });
      --idle_threads_;
      if (callbacks_.empty()) break;
      auto callback = std::move(callbacks_.front());
      callbacks_.pop_front();
      lock.unlock();
      callback();
      callback = nullptr;  // destroys what it holds without the lock
      lock.lock();
    }
    --threads_;
    changed_.notify_all();
  }

  // The object that started the calling thread; null for other threads.
  static thread_local const Impl* current_;

  std::mutex mutex_;  // guards all members below
  std::condition_variable changed_;
  std::deque<std::function<void()>> callbacks_;
  size_t threads_ = 0;
  size_t idle_threads_ = 0;
  bool is_stopping_ = false;
};

thread_local const CallbackThreads::Impl* CallbackThreads::Impl::current_ =
    nullptr;

CallbackThreads::CallbackThreads() : impl_(std::make_shared<Impl>()) {}
CallbackThreads::~CallbackThreads() { impl_->stop(); }

void CallbackThreads::run(std::function<void()> callback) {
  impl_->run(std::move(callback));
}

}  // namespace lockstep
