#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <unordered_map>

#include "lockstep/base/file_descriptor.h"

namespace lockstep {

/// Waits for many descriptors and for times, and calls functions. One thread
/// runs the loop and calls its member functions, except for wake() and stop(),
/// which any thread may call.
class EventLoop {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Handler = std::function<void(uint32_t events)>;

  /// Throws OutOfResources or IoError.
  EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  /// Calls `handler` with the events (EPOLLIN, EPOLLOUT, ...) that `fd` is
  /// ready for, as long as it is. EPOLLERR and EPOLLHUP are always among
  /// `events`. Without a handler, they only end run_once(). Files on disk can't
  /// be waited for. Throws OutOfResources, IoError, and InvalidArgument if `fd`
  /// is in the loop.
  void add(int fd, uint32_t events, Handler handler = {});
  /// Changes the events that are waited for. With none, nothing is reported of
  /// `fd` until the next change, not even EPOLLHUP.
  void change(int fd, uint32_t events);
  /// Ends the waiting for `fd`, if it is in the loop. Its handler is not called
  /// any more, even if events were found in the same turn. Must be called
  /// before `fd` is closed. Another descriptor may then get its number.
  void remove(int fd);

  /// Calls `task` once, at `time` or as soon after it as possible. Earlier
  /// tasks come first, and of tasks for the same time the one that was added
  /// first.
  void at(Time time, std::function<void()> task);

  /// Waits until a descriptor is ready, a task is due, wake() is called or a
  /// signal arrives, and at most until `until`. Then calls the handlers of what
  /// is ready and the tasks that are due. What they throw is passed on, and the
  /// loop can go on. Returns false, and calls nothing, if stop() was called.
  bool run_once(Time until = Time::max());
  /// Runs until stop() is called.
  void run();

  /// Makes run() return, now or when it is called next.
  void stop() noexcept;
  /// Makes run_once() return, now or when it is called next.
  void wake() noexcept;

 private:
  struct Watched {
    uint32_t number;  // distinguishes it from others with the same descriptor
    uint32_t events;  // none: epoll does not have it
    std::shared_ptr<const Handler> handler;
  };

  void set_events(int fd, Watched& watched, uint32_t events);
  void dispatch(int fd, uint32_t number, uint32_t events);
  void run_tasks();

  const FileDescriptor epoll_;
  const FileDescriptor wake_;
  std::atomic<bool> is_stopped_ = false;
  uint32_t next_number_ = 0;
  std::unordered_map<int, Watched> watched_;  // by descriptor
  std::multimap<Time, std::function<void()>> tasks_;
};

/// Waits until `fd` is ready for one of `events` (POLLIN, POLLOUT, ...), is
/// closed by its other end, or broken. Without a descriptor (-1), only waits.
/// Returns false at the deadline, and when `is_over` returns true, which is
/// called at first, after signals, and ten times a second. A deadline in the
/// past asks whether `fd` is ready now.
bool wait_for(int fd, short events, EventLoop::Time deadline,
              const std::function<bool()>& is_over = {});

/// Returns the time in `seconds` from now, at most in a year.
EventLoop::Time deadline_in(double seconds);

/// Returns the timeout with which poll() waits until `deadline`, in
/// milliseconds: rounded up, so that it is not too early, and from 0 to about a
/// quarter of an hour.
int poll_timeout_ms(EventLoop::Time deadline);

}  // namespace lockstep
