#include "lockstep/base/home_process.h"

#include <atomic>
#include <pthread.h>
#include <unistd.h>

namespace lockstep {
namespace {

// Number of forks between the first process that made a HomeProcess and this
// one.
std::atomic<uint64_t> generation = 0;

}  // namespace

HomeProcess::HomeProcess() : pid_(::getpid()) {
  static const int registered = ::pthread_atfork(nullptr, nullptr, [] {
    generation.fetch_add(1, std::memory_order_relaxed);
  });
  static_cast<void>(registered);
  generation_ = current();
}

uint64_t HomeProcess::current() {
  return generation.load(std::memory_order_relaxed);
}

}  // namespace lockstep
