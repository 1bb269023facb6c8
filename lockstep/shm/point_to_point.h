#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/shm/p2p_operation.h"
#include "lockstep/shm/p2p_segment.h"
#include "lockstep/shm/receive_queue.h"
#include "lockstep/shm/send_queue.h"

namespace lockstep::shm {

/// Sends and receives messages between the ranks of one host, as c10d does.
/// Messages from one rank to another with the same tag arrive in the order
/// sent. Messages with other tags may be received earlier. Any number of
/// operations of any size can be in progress, so ranks that all send before
/// they receive do not deadlock.
///
/// Operations that can finish at once do so in the caller's thread, so `done`
/// may be called before send() or receive() returns. Other operations are left
/// to a thread of this object, which calls `done` without holding a lock. A
/// send is done when its data has been copied (up to kInlineBytes) or received
/// (above that).
///
/// An operation fails with CommError if its peer ended, left or failed, or if
/// it times out. A receive also fails if its message has another size. After a
/// failed send it is not known whether the message was received.
///
/// A rank is a thread or a process. Several of its threads may call this
/// object.
class PointToPoint {
 public:
  using milliseconds = std::chrono::milliseconds;

  /// Joins without waiting for the other ranks. `segment` is the segment that
  /// rank 0 created with P2pSegment::make(). Throws CommError if it is for
  /// another world or the rank is taken.
  PointToPoint(std::shared_ptr<const Segment> segment, int rank, int ranks);
  /// Tells the other ranks that this rank left. Pending operations fail. Must
  /// not be called from `done`.
  ~PointToPoint();
  PointToPoint(const PointToPoint&) = delete;
  PointToPoint& operator=(const PointToPoint&) = delete;

  /// Send and receive a message. `data` must stay valid until `done` is called.
  /// Throw InvalidArgument if the rank is not one of the other ranks.
  void send(int to, int tag, std::span<const std::byte> data,
            milliseconds timeout, P2pDone done);
  void receive(int from, int tag, std::span<std::byte> data,
               milliseconds timeout, P2pDone done);
  /// Receives the first message with the tag from any rank. Ranks that are gone
  /// make it fail only if all of them are gone.
  void receive_any(int tag, std::span<std::byte> data, milliseconds timeout,
                   P2pDone done);

  /// Makes the operations of other ranks with this rank fail with `reason`.
  void abort(const std::string& reason) noexcept;

 private:
  using Clock = P2pOperation::Clock;
  using State = P2pRankState::State;

  void join();
  void start_receive(int from, int tag, std::span<std::byte> data,
                     milliseconds timeout, P2pDone done);
  /// Leaves pending operations to the thread.
  void hand_over();
  void run();
  void step(bool look_at_processes);
  bool is_idle() const;
  std::exception_ptr failure_of(const P2pOperation& operation) const;
  std::string whereabouts(const P2pOperation& operation) const;
  std::string all_ends() const;
  void leave(State state) noexcept;

  P2pSegment segment_;
  int rank_;
  ReceiveQueue receives_;
  SpareSegments spares_;
  std::vector<std::unique_ptr<SendQueue>> sends_;  // by receiver
  Peers peers_;                                    // used by the thread

  std::mutex mutex_;  // guards has_work_
  std::condition_variable handed_over_;
  bool has_work_ = false;
  std::thread thread_;
  std::atomic<bool> is_stopping_ = false;
  std::atomic<bool> has_written_failure_ = false;
};

}  // namespace lockstep::shm
