#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <thread>

#include <c10/core/Stream.h>

namespace lockstep::sim {

/// A point in the work of a stream. Recording it again makes it a new point.
/// Waits that have begun still wait for the old one.
class Event {
 public:
  struct Point;  // of one record()

  std::shared_ptr<Point> point() const;
  /// Returns a new point, which mark() reaches.
  std::shared_ptr<Point> renew();

  static void mark(Point& point);
  static bool is_reached(Point& point);
  static void wait(Point& point);
  static double time_ms(Point& point);

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<Point> point_;
};

/// A stream of a device: a thread that runs what was enqueued in order, each
/// task after a random delay. A task that throws makes its device faulty:
/// drain() throws the error, then and ever after.
class StreamThread {
 public:
  StreamThread(int device, int64_t id);

  int device() const { return device_; }
  int64_t id() const { return id_; }
  void enqueue(std::function<void()> task);
  /// Waits until the stream has done all that was enqueued.
  void wait_until_idle();
  /// Does the same, and throws the error of the device.
  void drain();
  bool is_idle();
  /// Ends the stream at the end of the process: drops the tasks that have not
  /// begun, and waits for the one that runs.
  void stop();
  /// Returns the number of threads for a kernel that this thread launches: as
  /// many as the thread computes with itself. LibTorch's own threads launch
  /// the kernels of a backward, which get the number of the last forward.
  int kernel_threads();

 private:
  using Task = std::function<void()>;

  void run();
  void delay();

  const int device_;
  const int64_t id_;
  std::mt19937_64 random_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  bool is_running_ = false;
  bool is_stopped_ = false;
  std::atomic<int> kernel_threads_{1};
  std::thread thread_;
};

/// Returns whether the streams were stopped. No wait lasts longer than that.
bool are_streams_stopped();

/// Returns the thread of `stream`.
StreamThread& thread_of(const c10::Stream& stream);
/// Returns the current stream of this thread on device `index` (-1: the current
/// device).
c10::Stream current_stream(int index = -1);
c10::Stream exchange_stream(const c10::Stream& stream);
c10::Stream new_stream(int index);
/// Returns one of the 32 streams in the pool of device `index`, the next one at
/// each call, as CUDA does.
c10::Stream stream_of_pool(int index);
int current_device();
/// Makes device `index` current, and returns the one before.
int exchange_device(int index);
/// Waits for all streams of device `index`. Throws its error.
void drain_device(int index);

/// The error of a kernel of device `index`, which its next synchronization
/// throws.
void set_error(int index, std::exception_ptr error);
void throw_error(int index);

}  // namespace lockstep::sim
