#pragma once

#include <chrono>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/types.h>

#include "lockstep/comm/collectives/shared_memory.h"

namespace lockstep {

/// Collective operations on CPU tensors of any type and strides. A call returns
/// when its result is ready. All ranks make the same calls in the same order,
/// each from one thread at a time.
///
/// A reduction combines the elements of all ranks along the tree of
/// tree_reduce.h, which gives the same bits on every rank and in every
/// implementation.
///
/// The arguments must already be checked (CallChecks). Throws CommError for
/// ranks that die, stall or call something else, and for operations that an
/// implementation does not support.
class Collectives {
 public:
  using Tensors = std::vector<at::Tensor>;
  using Timeout = std::chrono::milliseconds;
  using Work = c10::intrusive_ptr<c10d::Work>;

  virtual ~Collectives() = default;

  virtual std::string name() const = 0;
  virtual void all_reduce(const at::Tensor& tensor, const c10d::ReduceOp& op,
                          Timeout timeout) = 0;
  /// Reduces several dense tensors of one type in one message. Each gets the
  /// same bits as from a separate all_reduce(). All are read before the first
  /// is written, so a tensor that is listed twice is reduced once.
  virtual void all_reduce_coalesced(const Tensors& tensors,
                                    const c10d::ReduceOp& op,
                                    Timeout timeout) = 0;
  /// Returns the size up to which copying a tensor into a message of several
  /// tensors, and out of it, costs less than sending another message.
  virtual size_t small_message_bytes() const = 0;
  /// Changes `tensor` on root only.
  virtual void reduce(const at::Tensor& tensor, int root,
                      const c10d::ReduceOp& op, Timeout timeout) = 0;
  virtual void broadcast(const at::Tensor& tensor, int root,
                         Timeout timeout) = 0;
  virtual void all_gather(const Tensors& outputs, const at::Tensor& input,
                          Timeout timeout) = 0;
  /// `outputs` is empty on all ranks except root.
  virtual void gather(const Tensors& outputs, const at::Tensor& input, int root,
                      Timeout timeout) = 0;
  /// `inputs` is empty on all ranks except root.
  virtual void scatter(const at::Tensor& output, const Tensors& inputs,
                       int root, Timeout timeout) = 0;
  virtual void reduce_scatter(const at::Tensor& output, const Tensors& inputs,
                              const c10d::ReduceOp& op, Timeout timeout) = 0;
  /// Sizes may differ between pairs of ranks.
  virtual void all_to_all(const Tensors& outputs, const Tensors& inputs,
                          Timeout timeout) = 0;
  virtual void barrier(Timeout timeout) = 0;
  /// Runs c10d's monitored barrier: rank 0 names the ranks that do not arrive
  /// in time, all of them or the first. It does not wait for queued calls.
  virtual void monitored_barrier(Timeout timeout, bool wait_all_ranks) = 0;

  // Messages from rank to rank, as in c10d. Any number may be in flight at
  // once, from any threads and during collectives. The tensor must not change
  // before the Work is done. Messages of one sender with one tag arrive in the
  // order in which they were sent.
  virtual Work send(const at::Tensor& tensor, int to, int tag,
                    Timeout timeout) = 0;
  virtual Work recv(const at::Tensor& tensor, int from, int tag,
                    Timeout timeout) = 0;
  /// Receives the message that arrives first, from any rank. The Work's
  /// sourceRank() returns that rank.
  virtual Work recv_any(const at::Tensor& tensor, int tag, Timeout timeout) = 0;

  /// Value for World::sent_bytes().
  virtual int64_t sent_bytes() const { return 0; }

  /// Returns whether share() can be called.
  virtual bool can_share_memory() const = 0;
  /// Allocates `bytes` of zeros for each rank, which all ranks map. Collective.
  virtual SharedMemory share(size_t bytes, Timeout timeout) = 0;
  /// Makes the other ranks' waits fail with `reason`, if possible.
  virtual void abort(const std::string& reason) noexcept = 0;
};

}  // namespace lockstep
