#include "tests/accelerator/sim/stream.h"

#include <array>
#include <chrono>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/graph_task.h>

#include "tests/accelerator/sim/accelerator.h"

namespace lockstep::sim {

using Clock = std::chrono::steady_clock;

namespace {

// Waits look this often whether the process ends.
constexpr auto kPiece = std::chrono::milliseconds(20);

std::atomic<bool> is_end{false};

}  // namespace

struct Event::Point {
  std::mutex mutex;
  std::condition_variable changed;
  bool is_reached = false;
  Clock::time_point time;
};

std::shared_ptr<Event::Point> Event::point() const {
  const std::lock_guard lock(mutex_);
  return point_;
}

std::shared_ptr<Event::Point> Event::renew() {
  const std::lock_guard lock(mutex_);
  point_ = std::make_shared<Point>();
  return point_;
}

void Event::mark(Point& point) {
  const std::lock_guard lock(point.mutex);
  point.is_reached = true;
  point.time = Clock::now();
  point.changed.notify_all();
}

bool Event::is_reached(Point& point) {
  const std::lock_guard lock(point.mutex);
  return point.is_reached;
}

void Event::wait(Point& point) {
  std::unique_lock lock(point.mutex);
  while (!point.is_reached && !are_streams_stopped()) {
    point.changed.wait_for(lock, kPiece);
  }
}

double Event::time_ms(Point& point) {
  const std::lock_guard lock(point.mutex);
  return std::chrono::duration<double, std::milli>(
             point.time.time_since_epoch())
      .count();
}

StreamThread::StreamThread(int device, int64_t id)
    : device_(device),
      id_(id),
      random_(installed().seed * 1000003 +
              static_cast<uint64_t>(device) * 1009 + static_cast<uint64_t>(id)),
      thread_([this] { run(); }) {}

void StreamThread::enqueue(std::function<void()> task) {
  const std::lock_guard lock(mutex_);
  if (is_stopped_) return;
  tasks_.push_back(std::move(task));
  changed_.notify_all();
}

void StreamThread::wait_until_idle() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return tasks_.empty() && !is_running_; });
}

void StreamThread::drain() {
  wait_until_idle();
  throw_error(device_);
}

bool StreamThread::is_idle() {
  const std::lock_guard lock(mutex_);
  return tasks_.empty() && !is_running_;
}

void StreamThread::stop() {
  constexpr auto kLongest = std::chrono::seconds(10);  // a call of other ranks
  std::unique_lock lock(mutex_);
  is_stopped_ = true;
  // Never destroyed: what they hold would be freed in streams.
  static auto* const dropped = new std::vector<std::deque<Task>>();
  dropped->push_back(std::move(tasks_));
  tasks_.clear();
  changed_.wait_for(lock, kLongest, [&] { return !is_running_; });
}

int StreamThread::kernel_threads() {
  if (torch::autograd::get_current_graph_task_id() < 0) {
    kernel_threads_ = at::get_num_threads();
  }
  return kernel_threads_;
}

void StreamThread::delay() {
  constexpr uint64_t kOneOf = 8;
  const int longest = installed().max_delay_us;
  if (longest == 0 || random_() % kOneOf != 0) return;
  std::this_thread::sleep_for(
      std::chrono::microseconds(random_() % static_cast<uint64_t>(longest)));
}

void StreamThread::run() {
  for (;;) {
    std::function<void()> task;
    {
      std::unique_lock lock(mutex_);
      is_running_ = false;
      changed_.notify_all();
      changed_.wait(lock, [&] { return !tasks_.empty(); });
      task = std::move(tasks_.front());
      tasks_.pop_front();
      is_running_ = true;
    }
    delay();
    try {
      task();
    } catch (...) {
      set_error(device_, std::current_exception());
    }
  }
}

namespace {

/// All streams of all devices. Stream 0 of each device is its default stream.
struct Streams {
  std::mutex mutex;
  std::array<std::vector<std::unique_ptr<StreamThread>>, kMaxDevices> of;
  std::array<std::vector<int64_t>, kMaxDevices> pools;  // ids of streams
  std::array<size_t, kMaxDevices> calls_of_pool{};
  std::array<std::exception_ptr, kMaxDevices> errors;

  static Streams& get() {
    static auto* const streams = new Streams();  // threads run to the end
    return *streams;
  }
  StreamThread& at(int device, int64_t id) {
    const std::lock_guard lock(mutex);
    auto& list = of.at(static_cast<size_t>(device));
    if (list.empty()) add(device);
    return *list.at(static_cast<size_t>(id));
  }
  /// Returns the id of the new stream. Requires the lock.
  int64_t add(int device) {
    auto& list = of.at(static_cast<size_t>(device));
    const auto id = static_cast<int64_t>(list.size());
    list.push_back(std::make_unique<StreamThread>(device, id));
    return id;
  }
};

thread_local int device_of_thread = 0;
thread_local std::array<int64_t, kMaxDevices> stream_of_thread{};

c10::Stream stream(int index, int64_t id) {
  return c10::Stream(c10::Stream::UNSAFE,
                     c10::Device(kSim, static_cast<c10::DeviceIndex>(index)),
                     id);
}

}  // namespace

StreamThread& thread_of(const c10::Stream& stream) {
  return Streams::get().at(stream.device_index(), stream.id());
}

c10::Stream current_stream(int index) {
  if (index < 0) index = device_of_thread;
  return stream(index, stream_of_thread.at(static_cast<size_t>(index)));
}

c10::Stream exchange_stream(const c10::Stream& next) {
  auto& current = stream_of_thread.at(static_cast<size_t>(next.device_index()));
  const int64_t last = std::exchange(current, next.id());
  return stream(next.device_index(), last);
}

c10::Stream new_stream(int index) {
  if (index < 0) index = device_of_thread;
  auto& streams = Streams::get();
  streams.at(index, 0);
  const std::lock_guard lock(streams.mutex);
  const int64_t id = streams.add(index);
  return stream(index, id);
}

c10::Stream stream_of_pool(int index) {
  constexpr size_t kPoolSize = 32;
  if (index < 0) index = device_of_thread;
  auto& streams = Streams::get();
  streams.at(index, 0);
  const std::lock_guard lock(streams.mutex);
  auto& pool = streams.pools.at(static_cast<size_t>(index));
  size_t& calls = streams.calls_of_pool.at(static_cast<size_t>(index));
  if (pool.size() < kPoolSize) pool.push_back(streams.add(index));
  return stream(index, pool.at(calls++ % kPoolSize));
}

int current_device() { return device_of_thread; }

int exchange_device(int index) {
  TORCH_CHECK(index >= 0 && index < installed().devices,
              "there is no device sim:", index);
  return std::exchange(device_of_thread, index);
}

void drain_device(int index) {
  if (index < 0) index = device_of_thread;
  auto& streams = Streams::get();
  std::vector<StreamThread*> list;
  {
    const std::lock_guard lock(streams.mutex);
    for (const auto& one : streams.of.at(static_cast<size_t>(index))) {
      list.push_back(one.get());
    }
  }
  for (StreamThread* one : list) one->wait_until_idle();
  throw_error(index);
}

void stop_streams() {
  is_end = true;
  auto& streams = Streams::get();
  const std::lock_guard lock(streams.mutex);
  for (const auto& list : streams.of) {
    for (const auto& one : list) one->stop();
  }
}

bool are_streams_stopped() { return is_end; }

void set_error(int index, std::exception_ptr error) {
  auto& streams = Streams::get();
  const std::lock_guard lock(streams.mutex);
  auto& kept = streams.errors.at(static_cast<size_t>(index));
  if (kept == nullptr) kept = std::move(error);
}

void forget_errors() {
  for (int i = 0; i < installed().devices; ++i) {
    try {
      drain_device(i);
    } catch (const std::exception&) {
      auto& streams = Streams::get();
      const std::lock_guard lock(streams.mutex);
      streams.errors.at(static_cast<size_t>(i)) = nullptr;
    }
  }
}

void throw_error(int index) {
  auto& streams = Streams::get();
  std::exception_ptr error;
  {
    const std::lock_guard lock(streams.mutex);
    error = streams.errors.at(static_cast<size_t>(index));
  }
  if (error != nullptr) std::rethrow_exception(error);
}

}  // namespace lockstep::sim
