#pragma once

#include <cstddef>
#include <exception>
#include <span>

#include "lockstep/comm/transport/dense.h"
#include "lockstep/comm/transport/queued_work.h"

namespace lockstep {

/// A send or receive of a HostTransport. Keeps the tensor alive. If
/// the tensor has gaps in memory, the received data is copied into it at the
/// end.
class MessageWork : public QueuedWork {
 public:
  MessageWork(int rank, c10d::OpType type, const at::Tensor& tensor);

  /// The bytes that are sent, or the memory that receives.
  std::span<std::byte> bytes() const { return dense_.bytes(); }
  /// Returns the rank that sent, for a receive that is done.
  int sourceRank() const override;

  /// Called by the backend when the message was transferred, or when it failed
  /// (`error`). complete_future() then completes the future.
  void end(const std::exception_ptr& error, int source);

 private:
  Result dense_;
  int source_ = -1;
};

}  // namespace lockstep
