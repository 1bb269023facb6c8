#pragma once

#include <cstddef>
#include <exception>
#include <span>

#include "lockstep/comm/collectives/dense.h"
#include "lockstep/comm/queue/callback_threads.h"
#include "lockstep/comm/queue/queued_work.h"
#include "lockstep/shm/p2p_operation.h"

namespace lockstep {

/// A send or receive made by a shm::PointToPoint. Keeps the tensor alive. If
/// the tensor has gaps in memory, the received data is copied into it at the
/// end.
class MessageWork : public QueuedWork {
 public:
  MessageWork(int rank, c10d::OpType type, const at::Tensor& tensor);

  /// The bytes that are sent, or the memory that receives.
  std::span<std::byte> bytes() const { return dense_.bytes(); }
  /// Returns the rank that sent, for a receive that is done.
  int sourceRank() const override;

  /// Called by PointToPoint when the message was transferred, or when it failed
  /// (`error`). complete_future() then completes the future.
  void end(const std::exception_ptr& error, int source);

 private:
  Result dense_;
  int source_ = -1;
};

/// Returns the function that PointToPoint calls at the end. It keeps the work
/// alive until then. The callbacks of the work's future run in `threads` and
/// not in PointToPoint's thread, because they may wait for another message,
/// which that thread transfers.
shm::P2pDone done_of(c10::intrusive_ptr<MessageWork> work,
                     CallbackThreads& threads);

}  // namespace lockstep
