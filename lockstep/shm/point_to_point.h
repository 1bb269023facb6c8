#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/shm/p2p_channel.h"
#include "lockstep/shm/p2p_segment.h"
#include "lockstep/shm/receive_queue.h"
#include "lockstep/shm/send_queue.h"

namespace lockstep::shm {

/// The channel between the ranks of one host. A send is done when its data has
/// been copied (up to kInlineBytes) or received (above that).
///
/// A rank is a thread or a process.
class PointToPoint : public P2pChannel {
 public:
  /// Joins without waiting for the other ranks. `segment` is the segment that
  /// rank 0 created with P2pSegment::make(). Throws CommError if it is for
  /// another world or the rank is taken.
  PointToPoint(std::shared_ptr<const Segment> segment, int rank, int ranks);
  ~PointToPoint() override;

  void abort(const std::string& reason) noexcept override;

 private:
  using State = P2pRankState::State;

  void join();
  void start_send(P2pOperation send, std::span<const std::byte> data) override;
  void start_receive(P2pOperation receive, std::span<std::byte> data) override;
  const std::optional<std::string>& end_of(int rank) const override {
    return peers_.end_of(rank);
  }
  std::string state_of(int rank) const override {
    return peers_.state_of(rank);
  }
  /// Leaves pending operations to the thread.
  void hand_over();
  void run();
  void step(bool look_at_processes);
  bool is_idle() const;
  void leave(State state) noexcept;

  P2pSegment segment_;
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
