#include "lockstep/device/intra_op.h"

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

}  // namespace

void set_intra_op_threads_of_this_thread(int threads) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  // The first use in a thread sets its count from the process's default: that
  // must be over before ours is set. It is tracked per shared object, so once
  // in LibTorch and once here.
  at::get_num_threads();
  at::internal::lazy_init_num_threads();

  const int before = threads_of_a_new_thread();
  at::set_num_threads(threads);
  // The default of the process can only be set along with the count of the
  // thread that sets it: a thread that is good for nothing else.
  std::thread([before] { at::set_num_threads(before); }).join();
}

}  // namespace lockstep
