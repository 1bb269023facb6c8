#include "tests/accelerator/sim/faults.h"

#include <atomic>
#include <mutex>
#include <utility>

namespace lockstep::sim {
namespace {

std::mutex faults_mutex;
std::shared_ptr<const Faults> faults_now = std::make_shared<Faults>();
std::atomic<int64_t> allocations_to_failure{0};
std::atomic<int64_t> kernels_to_failure{0};

/// Counts down to 0. Returns whether it was reached now.
bool count_down(std::atomic<int64_t>& count) {
  int64_t left = count.load();
  while (left > 0 && !count.compare_exchange_weak(left, left - 1)) {
  }
  return left == 1;
}

}  // namespace

void set_faults(Faults faults) {
  const std::lock_guard lock(faults_mutex);
  allocations_to_failure = faults.failing_allocation;
  kernels_to_failure = faults.failing_kernel;
  faults_now = std::make_shared<Faults>(std::move(faults));
}

std::shared_ptr<const Faults> current_faults() {
  const std::lock_guard lock(faults_mutex);
  return faults_now;
}

bool take_failing_allocation() { return count_down(allocations_to_failure); }

bool take_failing_kernel() { return count_down(kernels_to_failure); }

}  // namespace lockstep::sim
