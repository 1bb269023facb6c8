#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/shm/futex.h"
#include "lockstep/shm/peer_process.h"
#include "lockstep/shm/segment.h"
#include "lockstep/transport/call.h"

namespace lockstep::shm {

/// Bytes of a rank's slot. The two slots of a rank, and the data that it reads
/// from other slots meanwhile, stay in a core's second-level cache.
inline constexpr size_t kSlotBytes = 1024 * 1024;
/// The largest number of ranks of which each checks every other rank in sync().
/// More ranks wait in two levels; see Group::sync().
inline constexpr int kFlatSyncRanks = 16;
inline constexpr int kMaxRanks = 256;

/// Throws CommError if shared memory can't be made for `ranks` ranks.
void check_rank_count(int ranks);

/// A group of ranks on one host that share a segment. The segment has a line of
/// words for each rank, for waiting, and two slots for each rank, for data.
///
/// Every collective consists of rounds. Each rank writes its slot, sync() waits
/// until all ranks have done so, and then each rank reads the slots it needs.
/// The next round uses the other slot, so a slow reader is safe without a
/// second wait: before a rank writes a slot again, the sync() in between has
/// shown that all ranks have finished reading it.
///
/// A rank is a thread or a process. Only one thread of a rank may use the group
/// at a time.
class Group {
 public:
  using Clock = std::chrono::steady_clock;

  /// Creates the segment for `ranks` ranks. Rank 0 calls this.
  static std::shared_ptr<const Segment> make_segment(int ranks);

  /// Joins the group and waits for all ranks, at most until the timeout. Throws
  /// CommError.
  Group(std::shared_ptr<const Segment> segment, int rank, int ranks,
        std::chrono::milliseconds timeout);
  /// Tells the other ranks that this rank left.
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  std::chrono::milliseconds timeout() const { return timeout_; }

  /// Starts a collective: announces `call` to the other ranks, which check it
  /// at the first sync(). The collective times out after `timeout`. Throws
  /// InvalidArgument for a root that is not a rank.
  void begin(const transport::Call& call, std::chrono::milliseconds timeout);
  /// Announces a number and the factor of this rank's data to the other ranks.
  /// Call it before the collective's first sync(). The defaults are 0 and 1.
  void announce(uint64_t value, double factor = 1);
  /// The range of the numbers that all ranks announced. Valid from the first
  /// sync() of the collective.
  struct Announced {
    uint64_t smallest = ~uint64_t{0};
    uint64_t largest = 0;
  };
  const Announced& announced() const { return announced_; }
  /// Return the announcement of one rank. Valid from the first sync() of the
  /// collective to the last.
  uint64_t value_of(int rank) const;
  double factor_of(int rank) const;

  /// Returns this rank's slot for the round. next_round() switches to the other
  /// slot.
  std::span<std::byte> own_slot() { return slot(rank_); }
  std::span<std::byte> slot(int rank) const { return slot(rank, round_); }
  /// Returns the address of the byte at `offset` of each rank's slot, by rank.
  /// The list is valid, and may be changed, until the next call.
  std::span<const std::byte*> slots_at(size_t offset);
  /// Returns the slot of the previous round.
  std::span<std::byte> previous_slot(int rank) const {
    return slot(rank, round_ - 1);
  }
  void next_round() { ++round_; }

  /// Waits until all ranks have called it. Throws CommError, on this rank and
  /// soon on every other rank, if one died, left, failed, is late, or announced
  /// another call. The group can't be used after that.
  ///
  /// Up to kFlatSyncRanks ranks each count their own arrival and wait for every
  /// other rank: n (n - 1) words are read, all at once. More ranks are divided
  /// into teams of kFlatSyncRanks, each led by its first rank (a combining tree
  /// of two levels). A leader waits for its team, then for the other leaders,
  /// and then releases its team. The team waits only for that. These are three
  /// waits in sequence, but only about 3 n words for up to kMaxRanks ranks.
  void sync();

  /// Works as Transport::end_of() and state_of().
  std::optional<std::string> end_of(int rank) const;
  std::string state_of(int rank) const;

  /// Ends the waits of the other ranks with `reason`, because this rank can't
  /// go on.
  void abort(const std::string& reason) noexcept;

 private:
  enum class State : uint32_t;
  struct Line;
  struct Header;

  Line& line(int rank) const;
  std::span<std::byte> slot(int rank, uint64_t round) const;
  void join();
  /// Returns whether there is a core for every rank while it waits in a loop.
  bool has_a_core_for_each() const;
  void sync_flat();
  void sync_teams();
  int leader_of(int rank) const {
    return rank / kFlatSyncRanks * kFlatSyncRanks;
  }
  /// Waits until rank `other` has advanced `events` to this sync().
  void wait_for(EventCount& events, int other);
  /// Returns the first rank that has not reached this sync(), or `waited_for`
  /// if all have. A leader that this rank waits for may itself wait for that
  /// rank.
  int late_rank(int waited_for) const;
  /// Returns whether `rank` has reached this phase.
  bool has_arrived(int rank) const;
  [[noreturn]] void time_out(int late);
  /// Opens a pidfd of rank `other` if it has joined from another process.
  void watch(int other);
  /// Throws if `events` has not reached this sync() and can't any more, because
  /// rank `waited_for`, or a rank that it may wait for, ended, failed or left.
  void check_alive(int waited_for, const EventCount& events);
  /// Adds the announcement of rank `other` to `sum`. Throws if that rank made a
  /// different call.
  void check_call(int other, Announced& sum);
  /// Throws if one of the ranks `begin`, `begin` + `step`, ... below `end` gave
  /// up this sync(), before this rank came to it. All of them have reached it.
  void check_not_given_up(int begin, int end, int step);
  /// Throws because rank `other` failed.
  [[noreturn]] void give_up_after(int other);
  [[noreturn]] void give_up_on_ended(int other);
  [[noreturn]] void give_up(const std::string& what, const std::string& got,
                            const std::string& fix);
  /// Leaves the group as `state`. `sync` is the sync() that this rank gives up,
  /// or 0 if it is not in one.
  void stop(State state, const std::string& reason, uint32_t sync) noexcept;
  std::string name(int rank) const;
  std::string here() const;

  std::shared_ptr<const Segment> segment_;
  int rank_;
  int ranks_;
  std::vector<const std::byte*> slot_addresses_;  // see slots_at()
  std::chrono::milliseconds timeout_;
  Clock::time_point deadline_;
  int spins_ = 0;
  uint32_t phase_ = 0;
  uint64_t round_ = 0;
  uint64_t sequence_ = 0;  // number of collectives begun
  transport::Call call_;
  bool is_checked_ = true;  // whether the ranks' calls were compared
  Announced announced_;
  std::atomic<bool> is_broken_ = false;  // abort() is called by any thread
  std::atomic<bool> has_written_failure_ = false;
  std::vector<PeerProcess> peers_;  // no pidfd for ranks of this process
};

}  // namespace lockstep::shm
