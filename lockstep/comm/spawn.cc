#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "lockstep/base/cores.h"
#include "lockstep/base/error.h"
#include "lockstep/base/start_thread.h"
#include "lockstep/comm/process_group_impl.h"
#include "lockstep/device/device.h"
#include "lockstep/device/intra_op.h"
#include "lockstep/store/socket_address.h"

namespace lockstep {
namespace {

/// Keeps the first exception that is a cause. A rank that fails closes its
/// connections, so CommErrors of other ranks may arrive before its exception.
/// Therefore a CommError is only used if there is no other exception.
class RootCause {
 public:
  void keep_current() {
    const std::lock_guard lock(mutex_);
    try {
      throw;
    } catch (const CommError&) {
      if (!complaint_) complaint_ = std::current_exception();
    } catch (...) {
      if (!cause_) cause_ = std::current_exception();
    }
  }
  void rethrow() const {
    if (cause_) std::rethrow_exception(cause_);
    if (complaint_) std::rethrow_exception(complaint_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr cause_, complaint_;
};

/// Holds the ranks' threads until all have been started. Ranks wait for each
/// other, so if one of them can't be started, none may begin.
class StartGate {
 public:
  enum State : int { kClosed, kOpen, kCancelled };

  /// Returns whether the ranks may begin.
  bool wait() {
    state_.wait(kClosed);
    return state_.load() == kOpen;
  }
  void set(State state) {
    state_.store(state);
    state_.notify_all();
  }

 private:
  std::atomic<int> state_ = kClosed;
};

/// Gives the calling thread the cores of slice `rank`, if there is at least one
/// core for each rank.
void take_cores(int rank, int ranks) {
  if (ranks > static_cast<int>(allowed_cores().size())) {
    set_intra_op_threads_of_this_thread(1);
    return;
  }
  const auto cores =
      cores_of({.type = c10::kCPU, .index = rank, .slices = ranks});
  pin_thread(cores);
  set_intra_op_threads_of_this_thread(static_cast<int>(cores.size()));
}

}  // namespace

void spawn(int ranks, const std::function<void(ProcessGroup)>& task,
           const ProcessGroupOptions& options) {
  if (ranks < 1) {
    throw InvalidArgument("comm", {.code = ErrorCode::kBadRank,
                                   .what = "no ranks to spawn",
                                   .expected = "1 or more",
                                   .got = std::to_string(ranks)});
  }
  const auto store = c10::make_intrusive<c10d::HashStore>();
  RootCause failure;
  StartGate gate;
  std::vector<std::thread> threads;
  const auto begin_rank = [&](int rank) {
    threads.push_back(start_thread("comm", "a rank of spawn()", [&, rank] {
      if (!gate.wait()) return;
      ProcessGroup world;
      try {
        take_cores(rank, ranks);
        if (ranks > 1) {
          world = ProcessGroup(std::make_shared<const ProcessGroup::Impl>(
              store, rank, ranks, store::loopback_host(), options));
        }
        task(world);
      } catch (const std::exception& error) {
        failure.keep_current();
        world.abort(text_of(error));
      } catch (...) {
        failure.keep_current();
        world.abort("an exception of no known type");
      }
    }));
  };
  try {
    for (int rank = 0; rank < ranks; ++rank) begin_rank(rank);
    gate.set(StartGate::kOpen);
  } catch (...) {
    failure.keep_current();
    gate.set(StartGate::kCancelled);
  }
  for (auto& thread : threads) thread.join();
  failure.rethrow();
}

}  // namespace lockstep
