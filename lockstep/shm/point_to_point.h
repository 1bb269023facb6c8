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
#include "lockstep/shm/peers.h"
#include "lockstep/shm/receive_queue.h"
#include "lockstep/shm/send_queue.h"
#include "lockstep/shm/spare_segments.h"

namespace lockstep::shm {

/// Sends and receives between the ranks of one host, as c10d's: messages from
/// one rank to another with one tag arrive in the order sent; those with other
/// tags may be received before. Any number of operations of any size can be
/// under way at once: ranks that all send before they receive do not lock up.
///
/// What can be done at once is done in the caller's thread, so `done` may be
/// called before send() or receive() returns. The rest is left to a thread of
/// this p2p, which calls it then, with no lock held. A send is done when
/// its data has been copied (up to kInlineBytes) or received (above).
///
/// An operation fails with CommError if its peer ended, left or failed, or at
/// the timeout, and a receive if its message has another size. Whether what a
/// failed send sent was received is not known.
///
/// A rank is a thread or a process. May be called by several threads of it.
class PointToPoint {
 public:
  using milliseconds = std::chrono::milliseconds;

  /// Does not wait for the other ranks. `segment`: P2pSegment::make() of rank
  /// 0. Throws CommError if it is for another world or the rank is taken.
  PointToPoint(std::shared_ptr<const Segment> segment, int rank, int ranks);
  /// Tells the others that this rank left; what is under way fails. Not to be
  /// called from `done`.
  ~PointToPoint();
  PointToPoint(const PointToPoint&) = delete;
  PointToPoint& operator=(const PointToPoint&) = delete;

  /// `data` must stay until `done`. Throws InvalidArgument for a rank that is
  /// not another one.
  void send(int to, int tag, std::span<const std::byte> data,
            milliseconds timeout, P2pDone done);
  void receive(int from, int tag, std::span<std::byte> data,
               milliseconds timeout, P2pDone done);
  /// From whichever rank's message with the tag comes first; fails for ranks
  /// that are gone only if all are.
  void receive_any(int tag, std::span<std::byte> data, milliseconds timeout,
                   P2pDone done);

  /// Fails the others' operations with this rank, with `reason`.
  void abort(const std::string& reason) noexcept;

 private:
  using Clock = P2pOperation::Clock;
  using State = P2pRankState::State;

  void join();
  void check_peer(int peer) const;
  void start_receive(int from, int tag, std::span<std::byte> data,
                     milliseconds timeout, P2pDone done);
  /// Leaves what is pending to the thread.
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
  Peers peers_;                                    // of the thread

  std::mutex mutex_;  // of what follows
  std::condition_variable handed_over_;
  bool has_work_ = false;
  std::thread thread_;
  std::atomic<bool> is_stopping_ = false;
  std::atomic<bool> has_written_failure_ = false;
};

}  // namespace lockstep::shm
