#pragma once

#include <cstddef>
#include <exception>
#include <span>

#include "lockstep/comm/collectives/dense.h"
#include "lockstep/comm/queue/callback_threads.h"
#include "lockstep/comm/queue/queued_work.h"
#include "lockstep/shm/p2p_operation.h"

namespace lockstep {

/// A send or receive that a shm::PointToPoint does. Keeps the tensor. If the
/// tensor has gaps in memory, what was received is copied into it at the end.
class MessageWork : public QueuedWork {
 public:
  MessageWork(int rank, c10d::OpType type, const at::Tensor& tensor);

  /// The bytes that are sent, or the memory that receives.
  std::span<std::byte> bytes() const { return dense_.bytes(); }
  /// For a receive that is done: the rank that sent.
  int sourceRank() const override;

  /// Called by PointToPoint when the message was moved, or when it failed
  /// (`error`). The future is completed by complete_future().
  void end(const std::exception_ptr& error, int source);

 private:
  Result dense_;
  int source_ = -1;
};

/// The function that PointToPoint calls at the end. It keeps the work until
/// then. The callbacks of the work's future run in `threads` and not in
/// PointToPoint's thread: they may wait for another message, which that thread
/// moves.
shm::P2pDone done_of(c10::intrusive_ptr<MessageWork> work,
                     CallbackThreads& threads);

}  // namespace lockstep
