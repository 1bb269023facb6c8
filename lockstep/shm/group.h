#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/shm/call.h"
#include "lockstep/shm/peer_process.h"
#include "lockstep/shm/segment.h"

namespace lockstep::shm {

/// Bytes of a rank's slot. Two slots of each of two ranks stay in a core's
/// second-level cache.
inline constexpr size_t kSlotBytes = 256 * 1024;
inline constexpr int kMaxRanks = 256;

/// Throws CommError if shared memory can't be made for `ranks` ranks.
void check_rank_count(int ranks);

/// Ranks of one host that share a segment: a line of words for each rank, to
/// wait for each other, and two slots for each rank, to pass data.
///
/// Every collective is made of rounds: each rank writes its slot, sync() waits
/// until all have, then each reads whatever slots it needs. The next round uses
/// the other slot, so a slow reader is safe without a second wait: who writes a
/// slot again has seen, at the sync() in between, that all were done with it.
///
/// A rank is a thread or a process. Not for several threads of a rank at once.
class Group {
 public:
  using Clock = std::chrono::steady_clock;

  /// Of rank 0: makes the segment for `ranks` ranks.
  static std::shared_ptr<const Segment> make_segment(int ranks);

  /// Waits for all ranks to come, until the timeout. Throws CommError.
  Group(std::shared_ptr<const Segment> segment, int rank, int ranks,
        std::chrono::milliseconds timeout);
  /// Tells the others that this rank left.
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  std::chrono::milliseconds timeout() const { return timeout_; }

  /// Starts a collective: announces `call` to the others, who check it at the
  /// first sync(). It ends at `timeout` from now. Throws InvalidArgument for a
  /// root that is no rank.
  void begin(const Call& call, std::chrono::milliseconds timeout);
  /// A number of this rank's for the others, from the next sync() on.
  void announce(uint64_t value);
  uint64_t announced_by(int rank) const;

  /// This rank's slot of the round; next_round() goes on to the other one.
  std::span<std::byte> own_slot() { return slot(rank_); }
  std::span<std::byte> slot(int rank) const;
  void next_round() { ++round_; }

  /// Waits for all ranks to come here. Throws CommError, on this and soon on
  /// every other rank, if one died, left, failed, does not come in time, or
  /// announced another call; the group can't be used any more then.
  void sync();

  /// Ends the others' waits with `reason`: this rank can't go on.
  void fail(const std::string& reason) noexcept;

 private:
  struct Line;
  struct Header;

  Line& line(int rank) const;
  void join();
  /// Whether every rank can have a core while it waits in a loop.
  bool has_a_core_for_each() const;
  bool has_arrived(int rank, uint32_t phase) const;
  void wait_for(int rank, uint32_t phase);
  /// Opens a pidfd of rank `other` if it has joined from another process.
  void watch(int other);
  /// Throws if rank `other`, or any that it may wait for, can't come any more.
  void check_alive(int other);
  void check_calls();
  [[noreturn]] void give_up_on_ended(int other);
  [[noreturn]] void give_up(const std::string& what, const std::string& got,
                            const std::string& fix);
  std::string name(int rank) const;
  std::string here() const;

  std::shared_ptr<const Segment> segment_;
  int rank_;
  int ranks_;
  std::chrono::milliseconds timeout_;
  Clock::time_point deadline_;
  int spins_ = 0;
  uint32_t phase_ = 0;
  uint64_t round_ = 0;
  uint64_t sequence_ = 0;  // of the collective
  Call call_;
  bool is_checked_ = true;  // the others' calls are those of this rank
  std::atomic<bool> is_broken_ = false;  // fail() is called by any thread
  std::atomic<bool> has_written_failure_ = false;
  std::vector<PeerProcess> peers_;  // no pidfd for this process's own ranks
};

}  // namespace lockstep::shm
