#include "lockstep/device/worker.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <optional>
#include <thread>
#include <utility>

#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/ScopeExit.h>
#include <fmt/format.h>

#include "lockstep/base/cores.h"
#include "lockstep/base/error.h"
#include "lockstep/base/home_process.h"
#include "lockstep/base/log.h"
#include "lockstep/base/start_thread.h"
#include "lockstep/device/accelerator.h"
#include "lockstep/device/intra_op.h"
#include "lockstep/device/memory.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

// Longer than a hand-over between running threads takes, and too short to waste
// a core noticeably.
constexpr auto kSpin = std::chrono::microseconds(40);

enum State : int { kStarting, kIdle, kRunning, kStopping };

thread_local const Device* device_of_thread = nullptr;

/// Waits until `state` is no longer `value`. Yields rather than pauses while
/// it spins: on a host with as many slices as cores, the thread that waits for
/// the workers shares a core with one of them.
void wait_while(const std::atomic<int>& state, int value, bool may_spin) {
  if (may_spin) {
    const auto deadline = Clock::now() + kSpin;
    while (Clock::now() < deadline) {
      if (state.load(std::memory_order_acquire) != value) return;
      std::this_thread::yield();
    }
  }
  while (state.load(std::memory_order_acquire) == value) {
    state.wait(value, std::memory_order_acquire);
  }
}

/// Spinning threads that share a core only slow each other down.
bool may_spin_on(const Device& device) {
  return !device.is_cpu() ||
         static_cast<size_t>(device.slices) <= allowed_cores().size();
}

}  // namespace

class Worker::Impl {
 public:
  Impl(const Device& device, int intra_op_threads)
      : device_(device), intra_op_threads_(intra_op_threads) {
    if (intra_op_threads < 0) {
      throw DeviceError(
          {.code = ErrorCode::kMisuse,
           .what = "a worker on " + device.name() + " can't be made",
           .expected = "0 or more intra-op threads",
           .got = std::to_string(intra_op_threads)});
    }
    if (device.is_cpu()) install_accounting_allocator();
    thread_ =
        start_thread("device", device.name() + "'s tasks", [this] { run(); });
    wait_while(state_, kStarting, may_spin_);
    if (error_ != nullptr) {
      thread_.join();
      std::rethrow_exception(error_);
    }
  }

  ~Impl() {
    if (!home_.is_this_process()) {
      thread_.detach();  // it does not exist here
      return;
    }
    wait_while(state_, kRunning, may_spin_);
    set_state(kStopping);
    thread_.join();
    if (error_ != nullptr) {
      log_error("device", "a task on " + device_.name() +
                              " failed, and nobody waited for it");
    }
  }

  void start(std::function<void()> task) {
    refuse_own_thread("start");
    if (!home_.is_this_process()) {
      throw DeviceError(
          {.code = ErrorCode::kMisuse,
           .what = fmt::format("a child of fork() has no worker of {}",
                               device_.name()),
           .expected = fmt::format("process {}", home_.pid()),
           .fix = "compute in the process that wrapped the module; or start "
                  "the child without fork(), and wrap it there"});
    }
    if (state_.load(std::memory_order_acquire) != kIdle) {
      throw DeviceError({.code = ErrorCode::kMisuse,
                         .what = device_.name() + " is still at a task",
                         .fix = "wait() for it before the next start()"});
    }
    task_ = std::move(task);
    caller_state_.emplace();
    if (!device_.is_cpu()) {
      fence_.emplace(device_);
      caller_streams_ = accelerator::current_streams(device_.type);
    }
    set_state(kRunning);
  }

  void wait() {
    refuse_own_thread("wait");
    wait_while(state_, kRunning, may_spin_);
    if (fence_) fence_->wait();
    fence_.reset();
    if (error_ != nullptr) std::rethrow_exception(std::exchange(error_, {}));
  }

  void run_here(const std::function<void()>& task) {
    std::optional<accelerator::Fence> fence(device_);
    {
      const c10::StreamGuard stream(stream_.value());
      const auto busy = c10::make_scope_exit(
          [this, begin = Clock::now(),
           outer = std::exchange(device_of_thread, &device_)] {
            device_of_thread = outer;
            busy_ticks_ += (Clock::now() - begin).count();
          });
      fence->wait();
      try {
        task();
      } catch (...) {
        // As in run_task().
        accelerator::wait_for_all(device_);
        throw;
      }
      fence.emplace(device_);
    }
    fence->wait();
  }

  const Device& device() const { return device_; }
  int intra_op_threads() const { return intra_op_threads_; }
  bool is_current_thread() const {
    return thread_.get_id() == std::this_thread::get_id();
  }
  double busy_s() const {
    return std::chrono::duration<double>(Clock::duration(busy_ticks_.load()))
        .count();
  }
  void reset_busy() { busy_ticks_ = 0; }

 private:
  void run() {
    device_of_thread = &device_;
    std::optional<MemoryScope> memory;
    try {
      bind();
      memory.emplace(device_);
    } catch (...) {
      error_ = std::current_exception();
      set_state(kStopping);
      return;
    }
    set_state(kIdle);
    while (true) {
      wait_while(state_, kIdle, may_spin_);
      if (state_.load(std::memory_order_acquire) == kStopping) return;
      run_task();
      set_state(kIdle);
    }
  }

  void bind() {
    if (!device_.is_cpu()) {
      stream_ = accelerator::bind_thread(device_);
      if (intra_op_threads_ == 0) intra_op_threads_ = at::get_num_threads();
    } else {
      const auto cores = cores_of(device_);
      pin_thread(cores);
      if (intra_op_threads_ == 0) {
        intra_op_threads_ = static_cast<int>(cores.size());
      }
    }
    set_intra_op_threads_of_this_thread(intra_op_threads_);
  }

  void run_task() {
    const auto begin = Clock::now();
    try {
      const at::ThreadLocalStateGuard guard(*caller_state_);
      use_caller_streams();
      if (fence_) fence_->wait();
      task_();
      if (fence_) fence_.emplace(device_);
    } catch (...) {
      error_ = std::current_exception();
      // Kernels of the task may use memory that the caller frees next.
      if (fence_) accelerator::wait_for_all(device_);
    }
    // The task is destroyed here, on the worker's thread.
    task_ = nullptr;
    caller_state_.reset();
    busy_ticks_ += (Clock::now() - begin).count();
  }

  /// Makes the caller's streams on the other devices current, so that a copy
  /// from such a device comes after the work that the caller has given to it.
  void use_caller_streams() const {
    for (const c10::Stream& stream : caller_streams_) {
      if (stream.device_index() == device_.index) continue;
      c10::impl::VirtualGuardImpl(device_.type).exchangeStream(stream);
    }
  }

  void set_state(State state) {
    state_.store(state, std::memory_order_release);
    state_.notify_all();
  }

  void refuse_own_thread(const char* call) const {
    if (!is_current_thread()) return;
    throw DeviceError(
        {.code = ErrorCode::kMisuse,
         .what = fmt::format("{}() on the worker of {} was called by a task "
                             "of that worker, which would never return",
                             call, device_.name()),
         .fix = "call it from the thread that owns the workers"});
  }

  const HomeProcess home_;
  const Device device_;
  int intra_op_threads_;
  const bool may_spin_ = may_spin_on(device_);
  std::optional<c10::Stream> stream_;  // of an accelerator
  // The members below belong to the caller while the worker is idle, and to the
  // worker while it runs. state_ transfers them.
  std::atomic<int> state_{kStarting};
  std::function<void()> task_;
  std::optional<at::ThreadLocalState> caller_state_;
  std::optional<accelerator::Fence> fence_;
  std::vector<c10::Stream> caller_streams_;  // one for each device of its type
  std::exception_ptr error_;
  std::atomic<Clock::rep> busy_ticks_{0};
  std::thread thread_;
};

Worker::Worker(const Device& device, int intra_op_threads)
    : impl_(std::make_unique<Impl>(device, intra_op_threads)) {}
Worker::~Worker() = default;

const Device& Worker::device() const { return impl_->device(); }
int Worker::intra_op_threads() const { return impl_->intra_op_threads(); }
void Worker::start(std::function<void()> task) {
  impl_->start(std::move(task));
}
void Worker::wait() { impl_->wait(); }
bool Worker::is_current_thread() const { return impl_->is_current_thread(); }
void Worker::run_here(const std::function<void()>& task) {
  impl_->run_here(task);
}
double Worker::busy_s() const { return impl_->busy_s(); }
void Worker::reset_busy() { impl_->reset_busy(); }

Device current_device() {
  return device_of_thread == nullptr ? Device{} : *device_of_thread;
}

void run_all(const std::vector<std::unique_ptr<Worker>>& workers,
             const std::function<void(size_t)>& task) {
  for (const auto& worker : workers) {
    if (!worker->is_current_thread()) continue;
    throw DeviceError(
        {.code = ErrorCode::kMisuse,
         .what = fmt::format("run_all() was called by a task that runs on {}, "
                             "one of the workers it would wait for",
                             worker->device().name()),
         .fix = "call it from the thread that owns the workers"});
  }
  // From here on, the caller only waits.
  const bool shares_cores =
      std::any_of(workers.begin(), workers.end(),
                  [](const auto& worker) { return worker->device().is_cpu(); });
  if (shares_cores) end_idle_team_of_this_thread();
  std::exception_ptr error;
  size_t started = 0;
  try {
    for (; started < workers.size(); ++started) {
      workers[started]->start([&task, k = started] { task(k); });
    }
  } catch (...) {
    error = std::current_exception();
  }
  // Waits for all tasks whatever happens, because they use objects that the
  // caller owns.
  for (size_t k = 0; k < started; ++k) {
    try {
      workers[k]->wait();
    } catch (...) {
      if (error == nullptr) error = std::current_exception();
    }
  }
  if (error != nullptr) std::rethrow_exception(error);
}

}  // namespace lockstep
