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
#include "lockstep/shm/event_count.h"
#include "lockstep/shm/peer_process.h"
#include "lockstep/shm/segment.h"

namespace lockstep::shm {

/// Bytes of a rank's slot. A rank's two slots, and what it reads of the others'
/// meanwhile, stay in a core's second-level cache.
inline constexpr size_t kSlotBytes = 1024 * 1024;
/// Up to so many ranks each look at every other's word in sync(). More wait in
/// two levels, see there.
inline constexpr int kFlatSyncRanks = 16;
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
  /// What this rank tells the others before the collective's first sync(): a
  /// number, and a factor of its data. Without a call they are 0 and 1.
  void announce(uint64_t value, double factor = 1);
  /// The numbers that all ranks announced, from the collective's first sync()
  /// on.
  struct Announced {
    uint64_t smallest = ~uint64_t{0};
    uint64_t largest = 0;
  };
  const Announced& announced() const { return announced_; }
  /// What one rank announced, from the first sync() to the last one.
  uint64_t value_of(int rank) const;
  double factor_of(int rank) const;

  /// This rank's slot of the round; next_round() goes on to the other one.
  std::span<std::byte> own_slot() { return slot(rank_); }
  std::span<std::byte> slot(int rank) const { return slot(rank, round_); }
  /// The slot of the round before.
  std::span<std::byte> previous_slot(int rank) const {
    return slot(rank, round_ - 1);
  }
  void next_round() { ++round_; }

  /// Waits for all ranks to come here. Throws CommError, on this and soon on
  /// every other rank, if one died, left, failed, does not come in time, or
  /// announced another call; the group can't be used any more then.
  ///
  /// Up to kFlatSyncRanks ranks each count their own arrival and wait for every
  /// other's: n (n - 1) words are read, all at once. More ranks are parted into
  /// teams of kFlatSyncRanks, each led by its first rank (a combining tree of
  /// two levels): a leader waits for its team, then for the other leaders, and
  /// then releases its team, which waits for that alone. Three waits one after
  /// the other, but only about 3 n words for up to kMaxRanks ranks.
  void sync();

  /// Ends the others' waits with `reason`: this rank can't go on.
  void abort(const std::string& reason) noexcept;

 private:
  enum class State : uint32_t;
  struct Line;
  struct Header;

  Line& line(int rank) const;
  std::span<std::byte> slot(int rank, uint64_t round) const;
  void join();
  /// Whether every rank can have a core while it waits in a loop.
  bool has_a_core_for_each() const;
  void sync_flat();
  void sync_teams();
  int leader_of(int rank) const {
    return rank / kFlatSyncRanks * kFlatSyncRanks;
  }
  /// Until rank `other` has advanced `events` to this sync().
  void wait_for(EventCount& events, int other);
  /// The first rank that has not come to this sync(), which a leader that this
  /// rank waits for may itself wait for; `waited_for` if all came.
  int late_rank(int waited_for) const;
  /// Whether `rank` has come to this phase.
  bool has_arrived(int rank) const;
  [[noreturn]] void time_out(int late);
  /// Opens a pidfd of rank `other` if it has joined from another process.
  void watch(int other);
  /// Throws if rank `waited_for`, or any that it may wait for, can't come any
  /// more, and `events` has not come to this sync() before.
  void check_alive(int waited_for, const EventCount& events);
  /// Adds rank `other`'s announcement to `sum`. Throws if it called something
  /// else.
  void check_call(int other, Announced& sum);
  [[noreturn]] void give_up_on_ended(int other);
  [[noreturn]] void give_up(const std::string& what, const std::string& got,
                            const std::string& fix);
  void stop(State state, const std::string& reason) noexcept;
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
  Announced announced_;
  std::atomic<bool> is_broken_ = false;  // abort() is called by any thread
  std::atomic<bool> has_written_failure_ = false;
  std::vector<PeerProcess> peers_;  // no pidfd for this process's own ranks
};

}  // namespace lockstep::shm
