#include "lockstep/shm/group.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <new>
#include <unistd.h>

#include <fmt/format.h>

#include "lockstep/base/cores.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/host_identity.h"
#include "lockstep/base/out_of_resources.h"
#include "lockstep/base/round_up.h"
#include "lockstep/transport/failure_text.h"

namespace lockstep::shm {

using transport::Call;
using transport::FailureText;
using transport::kUseOneBuild;
using transport::Operation;
namespace {

constexpr uint64_t kGroupMagic = 0x334d48534b434f4c;  // "LOCKSHM3"
// Time between two checks that the other ranks are alive.
constexpr int kSleepMs = 20;
// About 50 us: longer than a wake-up, but too short to waste a core. There is
// no sched_yield() in the loop. If another program uses the core, a rank that
// yields gets it back only milliseconds later; a rank that sleeps gets it back
// at once.
constexpr int kSpins = 2000;

// Tells the core that it is in a loop that waits for another core.
void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");
#endif
}

}  // namespace

enum class Group::State : uint32_t {
  kAbsent,
  kJoining,
  kHere,
  kLeft,
  kFailed,
  kGaveUp,  ///< gave up because another rank is kFailed
};

struct Group::Header {
  uint64_t magic;
  int32_t ranks;
};

/// The data that a rank shares with the others. Values that are written
/// together have their own cache lines. Arrivals, which ranks wait for, come
/// first.
struct Group::Line {
  alignas(64) EventCount arrivals;  ///< number of sync()s the rank reached
  std::atomic<State> state;
  /// Written after `failure` and before `state`: the sync() that this rank gave
  /// up, or 0.
  std::atomic<uint32_t> failed_sync;
  // Only for the leader of a team: number of sync()s that the whole team
  // reached, and number that all ranks reached.
  alignas(64) EventCount team_arrivals;
  alignas(64) EventCount releases;

  struct Announcement {
    uint64_t sequence;
    uint64_t value;
    double factor;
    Call call;
    // Only for a leader: announcements of its team and of all ranks.
    Announced by_team;
    Announced by_all;
  };
  // Written before the rank advances `arrivals`, and read by ranks that waited
  // for that. Indexed by the parity of the collective, because a rank may be
  // one collective ahead of another that still reads.
  alignas(64) std::array<Announcement, 2> announcements;

  // Written before state becomes kHere or, for `failure`, kFailed or kGaveUp.
  alignas(64) int32_t pid;
  uint64_t start_time;
  std::array<uint64_t, 16> cores;  ///< a bit for each core it may use
  FailureText failure;
};

void check_rank_count(int ranks) {
  if (ranks >= 1 && ranks <= kMaxRanks) return;
  throw CommError({.code = ErrorCode::kNoSharedMemory,
                   .what = "too many ranks for shared memory",
                   .expected = fmt::format("1 to {}", kMaxRanks),
                   .got = std::to_string(ranks),
                   .fix = "use the backend tcp"});
}

std::shared_ptr<const Segment> Group::make_segment(int ranks) {
  check_rank_count(ranks);
  const auto count = static_cast<size_t>(ranks);
  const size_t lines = 64 + count * sizeof(Line);
  auto segment = Segment::create(lines + 64 + count * 2 * kSlotBytes);
  // The lines start as zeroed memory.
  new (segment->bytes().data()) Header{kGroupMagic, ranks};
  return segment;
}

Group::Group(std::shared_ptr<const Segment> segment, int rank, int ranks,
             std::chrono::milliseconds timeout)
    : segment_(std::move(segment)),
      rank_(rank),
      ranks_(ranks),
      slot_addresses_(static_cast<size_t>(ranks)),
      timeout_(timeout),
      peers_(static_cast<size_t>(ranks)) {
  const auto* header =
      reinterpret_cast<const Header*>(segment_->bytes().data());
  const size_t needed =
      128 + static_cast<size_t>(ranks) * (sizeof(Line) + 2 * kSlotBytes);
  if (segment_->bytes().size() < needed || header->magic != kGroupMagic ||
      header->ranks != ranks) {
    throw CommError(
        {.code = ErrorCode::kNoSharedMemory,
         .what = "rank 0's shared memory belongs to another process group",
         .expected = "one of " + counted(ranks, "rank"),
         .got = fmt::format("{} bytes, {}", segment_->bytes().size(),
                            counted(header->ranks, "rank")),
         .fix = kUseOneBuild});
  }
  join();
}

Group::~Group() {
  State here = State::kHere;
  line(rank_).state.compare_exchange_strong(here, State::kLeft);
  line(rank_).arrivals.wake();
}

Group::Line& Group::line(int rank) const {
  std::byte* lines = segment_->bytes().data() + 64;
  return reinterpret_cast<Line*>(lines)[rank];
}

std::span<const std::byte*> Group::slots_at(size_t offset) {
  for (int rank = 0; rank < ranks_; ++rank) {
    slot_addresses_[static_cast<size_t>(rank)] = slot(rank).data() + offset;
  }
  return slot_addresses_;
}

std::span<std::byte> Group::slot(int rank, uint64_t round) const {
  const size_t lines =
      round_up<size_t>(64 + static_cast<size_t>(ranks_) * sizeof(Line), 64);
  const auto index = static_cast<size_t>(rank) * 2 + round % 2;
  return segment_->bytes().subspan(lines + index * kSlotBytes, kSlotBytes);
}

void Group::join() {
  Line& own = line(rank_);
  State absent = State::kAbsent;
  if (!own.state.compare_exchange_strong(absent, State::kJoining)) {
    is_broken_ = true;
    throw CommError({.code = ErrorCode::kNoSharedMemory,
                     .what = fmt::format("two processes are rank {}", rank_),
                     .got = fmt::format("pid {} and {}", own.pid, ::getpid()),
                     .fix = "give each its own RANK"});
  }
  own.pid = ::getpid();
  own.start_time = own_start_time();
  for (const int core : allowed_cores()) {
    const auto index = static_cast<size_t>(core);
    if (index / 64 < own.cores.size()) {
      own.cores[index / 64] |= uint64_t{1} << index % 64;
    }
  }
  own.state.store(State::kHere);
  begin({.operation = Operation::kBarrier}, timeout_);
  sync();
  for (int other = 0; other < ranks_; ++other) watch(other);
  spins_ = has_a_core_for_each() ? kSpins : 0;
}

bool Group::has_a_core_for_each() const {
  int count = 0;
  for (size_t word = 0; word < line(0).cores.size(); ++word) {
    uint64_t any = 0;
    for (int rank = 0; rank < ranks_; ++rank) any |= line(rank).cores[word];
    count += std::popcount(any);
  }
  return count >= ranks_;
}

void Group::watch(int other) {
  const Line& its = line(other);
  PeerProcess& peer = peers_[static_cast<size_t>(other)];
  if (peer.pid() != 0 || its.state.load() < State::kHere ||
      its.pid == ::getpid()) {
    return;
  }
  try {
    peer = PeerProcess(its.pid, its.start_time);
  } catch (const CommError& error) {
    give_up_on_ended(other);
  } catch (const OutOfResources& error) {
    // The other rank is fine, but this one can't go on.
    abort(text_of(error));
    throw;
  }
}

void Group::begin(const Call& call, std::chrono::milliseconds timeout) {
  if (is_broken_) {
    throw CommError(
        {.code = ErrorCode::kCollectiveFailed,
         .what = fmt::format("rank {} calls {} in a group that "
                             "failed before",
                             rank_, call.describe()),
         .fix = "look at the first error; make a new ProcessGroup"});
  }
  transport::check_root(call, rank_, ranks_);
  ++sequence_;
  call_ = call;
  is_checked_ = false;
  deadline_ = Clock::now() + timeout;
  line(rank_).announcements[sequence_ % 2] = {.sequence = sequence_,
                                              .value = 0,
                                              .factor = 1,
                                              .call = call,
                                              .by_team = {},
                                              .by_all = {}};
}

void Group::announce(uint64_t value, double factor) {
  Line::Announcement& announcement = line(rank_).announcements[sequence_ % 2];
  announcement.value = value;
  announcement.factor = factor;
}

uint64_t Group::value_of(int rank) const {
  return line(rank).announcements[sequence_ % 2].value;
}

double Group::factor_of(int rank) const {
  return line(rank).announcements[sequence_ % 2].factor;
}

void Group::sync() {
  ++phase_;
  line(rank_).arrivals.advance();
  if (ranks_ <= kFlatSyncRanks) {
    sync_flat();
  } else {
    sync_teams();
  }
  is_checked_ = true;
}

void Group::sync_flat() {
  for (int other = 0; other < ranks_; ++other) {
    wait_for(line(other).arrivals, other);
  }
  check_not_given_up(0, ranks_, 1);
  if (is_checked_) return;
  announced_ = {};
  for (int other = 0; other < ranks_; ++other) check_call(other, announced_);
}

void Group::sync_teams() {
  const int leader = leader_of(rank_);
  const auto announcement_of = [&](int rank) -> Line::Announcement& {
    return line(rank).announcements[sequence_ % 2];
  };
  if (rank_ != leader) {
    wait_for(line(leader).releases, leader);
    if (!is_checked_) announced_ = announcement_of(leader).by_all;
    return;
  }
  const int end = std::min(leader + kFlatSyncRanks, ranks_);
  for (int member = leader; member < end; ++member) {
    wait_for(line(member).arrivals, member);
  }
  if (!is_checked_) {
    Announced sum;
    for (int member = leader; member < end; ++member) check_call(member, sum);
    announcement_of(leader).by_team = sum;
  }
  line(leader).team_arrivals.advance();
  for (int other = 0; other < ranks_; other += kFlatSyncRanks) {
    wait_for(line(other).team_arrivals, other);
  }
  // The members of a team wait for this leader, so they notice it there.
  check_not_given_up(leader, end, 1);
  check_not_given_up(0, ranks_, kFlatSyncRanks);
  if (!is_checked_) {
    announced_ = {};
    for (int other = 0; other < ranks_; other += kFlatSyncRanks) {
      check_call(other, announced_);
      const Announced& team = announcement_of(other).by_team;
      announced_.smallest = std::min(announced_.smallest, team.smallest);
      announced_.largest = std::max(announced_.largest, team.largest);
    }
    announcement_of(leader).by_all = announced_;
  }
  line(leader).releases.advance();
}

void Group::wait_for(EventCount& events, int other) {
  for (int spin = 0; spin < spins_; ++spin) {
    if (events.has_reached(phase_)) return;
    relax();
  }
  while (!events.has_reached(phase_)) {
    const uint32_t seen = events.count();
    if (!events.has_reached(phase_)) events.wait(seen, kSleepMs);
    if (events.has_reached(phase_)) return;
    const int late = late_rank(other);
    check_alive(late, events);
    if (Clock::now() > deadline_) time_out(late);
  }
}

// Returns whether `rank` has reached this sync(). It may have left since. With
// more than kFlatSyncRanks ranks, the leader of a team releases its members,
// and may do so later.
bool Group::has_arrived(int rank) const {
  return line(rank).arrivals.has_reached(phase_);
}

int Group::late_rank(int waited_for) const {
  for (int rank = 0; rank < ranks_; ++rank) {
    if (!has_arrived(rank)) return rank;
  }
  return waited_for;
}

void Group::time_out(int late) {
  const auto& peer = peers_[static_cast<size_t>(late)];
  give_up(fmt::format("{} did not come to {} in time: timed out", name(late),
                      here()),
          line(late).state.load() < State::kHere ? "it never joined"
          : peer.pid() == 0                      ? "it runs in another process"
                                                 : "it " + peer.state(),
          "look at what that rank does; if it only needs longer, raise the "
          "timeout");
}

void Group::check_alive(int waited_for, const EventCount& events) {
  // Check for ranks that ended first, because other ranks fail after them.
  for (int other = 0; other < ranks_; ++other) watch(other);
  const bool may_have_ended = may_any_have_ended(peers_);
  for (int other = 0; may_have_ended && other < ranks_; ++other) {
    if (!peers_[static_cast<size_t>(other)].has_ended()) continue;
    // A rank that left and then ended matters only to ranks that wait for it.
    if (line(other).state == State::kLeft &&
        (other != waited_for || has_arrived(other))) {
      continue;
    }
    // If the sync() was reached before the end of that rank, it still counts.
    if (events.has_reached(phase_)) return;
    give_up_on_ended(other);
  }
  for (int other = 0; other < ranks_; ++other) {
    if (other == rank_ || line(other).state != State::kFailed) continue;
    give_up_after(other);
  }
  if (line(waited_for).state == State::kLeft && !has_arrived(waited_for) &&
      !events.has_reached(phase_)) {
    give_up(fmt::format("{} left the group while rank {} waited in {}",
                        name(waited_for), rank_, here()),
            {},
            "make every rank call the same collectives; a backward() of "
            "DistributedDataParallel is one, so if the ranks have different "
            "numbers of batches, run the loop in its join()");
  }
}

void Group::check_not_given_up(int begin, int end, int step) {
  int found = -1;
  for (int other = begin; other < end; other += step) {
    if (other == rank_ || line(other).failed_sync != phase_) continue;
    found = other;
    // A rank that is kGaveUp only passes on the failure of another.
    if (line(other).state == State::kFailed) break;
  }
  if (found >= 0) give_up_after(found);
}

void Group::give_up_after(int other) {
  const CommError error(
      {.code = ErrorCode::kCollectiveFailed,
       .what = fmt::format("{} failed while rank {} was in {}", name(other),
                           rank_, here()),
       .got = std::string(transport::text_of(line(other).failure))});
  // kGaveUp and not kFailed, so that the other ranks report the rank that
  // failed.
  stop(State::kGaveUp, text_of(error), phase_);
  throw error;
}

void Group::give_up_on_ended(int other) {
  give_up(fmt::format("{} ended while rank {} was in {}", name(other), rank_,
                      here()),
          {}, "look at that rank's own output");
}

void Group::check_call(int other, Announced& sum) {
  const auto parity = sequence_ % 2;
  const auto& called = line(other).announcements[parity];
  if (called.sequence != sequence_ || called.call != call_) {
    give_up(fmt::format("rank {} and rank {} called different collectives "
                        "(number {} of the group)",
                        std::min(rank_, other), std::max(rank_, other),
                        sequence_ - 1),
            fmt::format("rank {}: {}; rank {}: {}", rank_, call_.describe(),
                        other, called.call.describe()),
            "make every rank call the same ones in the same order");
  }
  sum.smallest = std::min(sum.smallest, called.value);
  sum.largest = std::max(sum.largest, called.value);
}

void Group::give_up(const std::string& what, const std::string& got,
                    const std::string& fix) {
  const CommError error({.code = ErrorCode::kCollectiveFailed,
                         .what = what,
                         .got = got,
                         .fix = fix});
  stop(State::kFailed, text_of(error), phase_);
  throw error;
}

void Group::abort(const std::string& reason) noexcept {
  stop(State::kFailed, reason, 0);
}

void Group::stop(State state, const std::string& reason,
                 uint32_t sync) noexcept {
  is_broken_ = true;
  Line& own = line(rank_);
  if (own.state.load() != State::kHere) return;
  // If several threads fail at the same time, only one writes the text.
  if (has_written_failure_.exchange(true)) return;
  transport::set_failure(own.failure, reason);
  own.failed_sync = sync;
  own.state.store(state);
  own.arrivals.wake();
  own.team_arrivals.wake();
  own.releases.wake();
}

std::optional<std::string> Group::end_of(int rank) const {
  const Line& its = line(rank);
  const State state = its.state.load();
  if (state < State::kHere) return std::nullopt;
  if (state == State::kLeft) return name(rank) + " left the group";
  if (state != State::kHere) {
    return fmt::format("{} failed: {}", name(rank),
                       transport::text_of(its.failure));
  }
  if (its.pid == ::getpid()) return std::nullopt;
  try {
    // Not the one in peers_, which belongs to the thread in sync().
    if (!PeerProcess(its.pid, its.start_time).has_ended()) return std::nullopt;
  } catch (const OutOfResources&) {
    return std::nullopt;
  } catch (const CommError&) {
    // It is gone.
  }
  return name(rank) + " ended";
}

std::string Group::state_of(int rank) const {
  const Line& its = line(rank);
  if (its.state.load() < State::kHere) return name(rank) + " never joined";
  if (auto end = end_of(rank)) return *end;
  if (its.pid == ::getpid()) return name(rank) + " is here";
  try {
    return fmt::format("{} {}", name(rank),
                       PeerProcess(its.pid, its.start_time).state());
  } catch (const Error&) {
    return name(rank) + " is there";
  }
}

std::string Group::name(int rank) const {
  const Line& its = line(rank);
  if (its.state.load() < State::kHere) return fmt::format("rank {}", rank);
  return fmt::format("rank {} (host {}, pid {})", rank, host_name(), its.pid);
}

std::string Group::here() const {
  return fmt::format("{}, number {}", call_.describe(), sequence_ - 1);
}

}  // namespace lockstep::shm
