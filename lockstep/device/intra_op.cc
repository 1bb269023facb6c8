#include "lockstep/device/intra_op.h"

#include <algorithm>
#include <dlfcn.h>
#include <exception>
#include <mutex>
#include <thread>

#include <ATen/Parallel.h>

namespace lockstep {
namespace {

int threads_of_a_new_thread() {
  int threads = 1;
  std::thread([&threads] { threads = at::get_num_threads(); }).join();
  return threads;
}

/// LibTorch's OpenMP runtime, through the entry points that GCC's code calls.
/// LLVM's and Intel's runtimes have them too. Pointers are null if this process
/// has no such runtime.
struct OpenMp {
  void (*parallel)(void (*)(void*), void*, unsigned threads, unsigned flags);
  int (*thread_number)();
  int (*in_parallel)();
  int (*initial_device)();
  int (*pause)(int kind, int device);  // null before OpenMP 5.0

  static const OpenMp& get() {
    static const OpenMp found{symbol<decltype(parallel)>("GOMP_parallel"),
                              symbol<int (*)()>("omp_get_thread_num"),
                              symbol<int (*)()>("omp_in_parallel"),
                              symbol<int (*)()>("omp_get_initial_device"),
                              symbol<int (*)(int, int)>("omp_pause_resource")};
    return found;
  }
  bool is_found() const {
    return parallel != nullptr && thread_number != nullptr &&
           in_parallel != nullptr;
  }

 private:
  template <class F>
  static F symbol(const char* name) {
    return reinterpret_cast<F>(dlsym(RTLD_DEFAULT, name));
  }
};

struct Team {
  int64_t count;
  int64_t threads;
  const std::function<void(int64_t, int64_t)>* task;
  std::mutex mutex;
  std::exception_ptr error;

  // An exception must not leave a parallel region.
  void run_part(int64_t thread) noexcept {
    const int64_t begin = count * thread / threads;
    const int64_t end = count * (thread + 1) / threads;
    if (begin == end) return;
    try {
      (*task)(begin, end);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (error == nullptr) error = std::current_exception();
    }
  }
};

}  // namespace

void intra_op_for(int64_t count,
                  const std::function<void(int64_t, int64_t)>& task) {
  if (count <= 0) return;
  const OpenMp& omp = OpenMp::get();
  const auto threads =
      std::min<int64_t>(count, static_cast<int64_t>(at::get_num_threads()));
  if (threads <= 1 || !omp.is_found() || omp.in_parallel() != 0) {
    task(0, count);
    return;
  }
  Team team{count, threads, &task, {}, {}};
  omp.parallel(
      [](void* data) {
        static_cast<Team*>(data)->run_part(OpenMp::get().thread_number());
      },
      &team, static_cast<unsigned>(threads), 0);
  if (team.error != nullptr) std::rethrow_exception(team.error);
}

void intra_op_for(c10::DeviceType device, int64_t count,
                  const std::function<void(int64_t, int64_t)>& task) {
  if (device == c10::DeviceType::CPU) {
    intra_op_for(count, task);
  } else if (count > 0) {
    task(0, count);
  }
}

void end_idle_team_of_this_thread() {
  constexpr int kPauseSoft = 1;  // omp_pause_soft
  const OpenMp& omp = OpenMp::get();
  if (omp.pause == nullptr || omp.initial_device == nullptr) return;
  omp.pause(kPauseSoft, omp.initial_device());
}

void set_intra_op_threads_of_this_thread(int threads) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  // The first use in a thread sets the thread's count from the process's
  // default, so it must happen before the count is set here. The count is
  // tracked per shared object: once in LibTorch and once here.
  at::get_num_threads();
  at::internal::lazy_init_num_threads();

  const int before = threads_of_a_new_thread();
  at::set_num_threads(threads);
  // Setting the process's default also sets the count of the calling thread, so
  // a temporary thread sets it.
  std::thread([before] { at::set_num_threads(before); }).join();
}

}  // namespace lockstep
