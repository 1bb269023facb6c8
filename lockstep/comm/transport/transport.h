#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/types.h>

#include "lockstep/base/home_process.h"
#include "lockstep/comm/transport/call_factory.h"
#include "lockstep/comm/transport/collective.h"
#include "lockstep/comm/transport/shared_memory.h"

namespace lockstep {

/// Carries the calls of a ProcessGroup to the other ranks. There is one class
/// for each kind of connection: HostTransport (shm and tcp), DeviceTransport,
/// and SingleRank, for a group of one rank.
///
/// All ranks make the same collective calls in the same order, each from one
/// thread at a time. Messages from rank to rank are independent of them.
///
/// The arguments must already be checked, by calls(). Throws CommError for
/// ranks that die, stall or call something else, for operations that a
/// transport does not support, and in a child of a rank's process, which is no
/// rank.
class Transport {
 public:
  using Timeout = std::chrono::milliseconds;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  /// `name` is that of the backend, and `timeout` applies to each call that has
  /// no other.
  Transport(std::string name, const CallFactory& calls, Timeout timeout)
      : name_(std::move(name)), calls_(calls), timeout_(timeout) {}
  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  /// Returns the name of the backend, with which titles for a profiler begin:
  /// "shm" in "shm:all_reduce".
  const std::string& name() const { return name_; }
  /// Must be called before the first call of the transport.
  void set_name(std::string name) { name_ = std::move(name); }
  /// Checks the arguments of calls and makes them.
  const CallFactory& calls() const { return calls_; }
  int rank() const { return calls_.rank(); }
  int size() const { return calls_.size(); }
  Timeout timeout() const { return timeout_; }
  void set_timeout(Timeout timeout) { timeout_ = timeout; }

  /// Returns when `call` and all calls begun before it are done. Throws the
  /// error of `call` if it failed.
  virtual void run(const CollectiveCall& call, Timeout timeout) = 0;
  /// Begins `call` and returns at once. The result is null if `call` is already
  /// done.
  virtual WorkPtr begin(CollectiveCall call, Timeout timeout) = 0;
  /// Returns the number of the next collective. Each rank counts its
  /// collectives from 0.
  virtual uint64_t sequence_number() const { return 0; }

  // Messages from rank to rank, as in c10d. Any number may be in flight at
  // once, from any threads and during collectives. The tensor must not change
  // before the Work is done. Messages of one sender with one tag arrive in the
  // order in which they were sent. Arguments are checked here.
  virtual WorkPtr send(const at::Tensor& tensor, int to, int tag) = 0;
  virtual WorkPtr recv(const at::Tensor& tensor, int from, int tag) = 0;
  /// Receives the message that arrives first, from any rank. The Work's
  /// sourceRank() returns that rank.
  virtual WorkPtr recv_any(const at::Tensor& tensor, int tag) = 0;

  /// Runs c10d's monitored barrier: rank 0 names the ranks that do not arrive
  /// in time, all of them or the first. It does not wait for queued calls.
  virtual void monitored_barrier(Timeout timeout, bool wait_all_ranks) = 0;

  /// Returns whether sums add the ranks along the tree.
  virtual bool sums_along_tree() const { return true; }
  /// Value for ProcessGroup::sent_bytes().
  virtual int64_t sent_bytes() const { return 0; }
  /// Returns whether ShareMemory is supported.
  virtual bool can_share_memory() const { return false; }
  /// Allocates memory of each rank, which all ranks map
  /// (ProcessGroup::shared_memory). Collective.
  SharedMemory share(size_t bytes) {
    SharedMemory memory;
    run({.collectives = {ShareMemory{bytes, &memory}}}, timeout());
    return memory;
  }
  /// Makes the other ranks' waits fail with `reason`, if possible.
  virtual void abort(const std::string& reason) noexcept = 0;

  /// The process whose rank this is.
  const HomeProcess& home() const { return home_; }
  /// Throws CommError in a child of that process.
  void check_home() const;

 private:
  const HomeProcess home_;
  std::string name_;
  CallFactory calls_;
  std::atomic<Timeout> timeout_;
};

}  // namespace lockstep
