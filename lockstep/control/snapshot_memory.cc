#include "lockstep/control/snapshot_memory.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/out_of_resources.h"
#include "lockstep/base/round_up.h"
#include "lockstep/base/stopwatch.h"
#include "lockstep/control/worker_side.h"
#include "lockstep/shm/futex.h"

namespace lockstep::control {
namespace {

using State = SnapshotOffer::State;

constexpr double kHoldTimeoutS = 60;
constexpr int kPollEveryMs = 50;

// Returns the size of the marks before the content, one for each worker.
size_t marks_bytes(const ControlBlock& block) {
  constexpr size_t kPage = 4096;
  const size_t bytes =
      static_cast<size_t>(block.workers()) * sizeof(std::atomic<uint64_t>);
  return round_up(bytes, kPage);
}

// Sleeps until the state may have changed.
void wait_while(const SnapshotOffer& offer, State state) {
  static_assert(sizeof(offer.state) == sizeof(std::atomic<uint32_t>));
  shm::futex_wait(reinterpret_cast<const std::atomic<uint32_t>&>(offer.state),
                  static_cast<uint32_t>(state), kPollEveryMs);
}

void set_state(SnapshotOffer& offer, State state) {
  offer.state.store(state);
  shm::futex_wake(reinterpret_cast<std::atomic<uint32_t>&>(offer.state));
}

}  // namespace

SnapshotMemory::SnapshotMemory(
    const ControlBlock& block,
    std::array<std::shared_ptr<const shm::Segment>, 2> slots)
    : block_(block), slots_(std::move(slots)) {
  const size_t marks = marks_bytes(block);
  const size_t whole =
      std::min(slots_[0]->bytes().size(), slots_[1]->bytes().size());
  bytes_ = whole > marks ? whole - marks : 0;
}

std::optional<SnapshotMemory> SnapshotMemory::find(const ControlBlock& block) {
  const SnapshotOffer& offer = block.header().snapshots;
  if (offer.state.load() != State::kHeld) return std::nullopt;
  return SnapshotMemory(block, {shm::Segment::open(offer.slots[0]),
                                shm::Segment::open(offer.slots[1])});
}

namespace {

// Returns nothing, too, while the worker with local rank 0 replaces memory that
// is too small.
std::optional<SnapshotMemory> find_complete(const ControlBlock& block) {
  try {
    return SnapshotMemory::find(block);
  } catch (const CommError& error) {
    log_debug("launch", text_of(error));
    return std::nullopt;
  }
}

}  // namespace

SnapshotMemory SnapshotMemory::make(const ControlBlock& block, size_t bytes) {
  SnapshotOffer& offer = block.header().snapshots;
  const size_t whole = marks_bytes(block) + bytes;
  const Stopwatch waited;
  std::array<std::shared_ptr<const shm::Segment>, 2> made;
  for (;;) {
    if (auto found = find_complete(block); found && found->bytes() >= bytes) {
      return *found;
    }
    if (block.own_slot() == 0 && !made[0]) {
      // There is no offer until the addresses are written.
      set_state(offer, State::kNone);
      made = {shm::Segment::create(whole), shm::Segment::create(whole)};
      offer.slots = {made[0]->address(), made[1]->address()};
      set_state(offer, State::kOffered);
    }
    if (waited.seconds() > kHoldTimeoutS || is_attempt_over()) {
      throw CommError(
          {.code = ErrorCode::kOutOfMemory,
           .what = "there is no memory for snapshots",
           .expected = fmt::format("the agent to hold 2 x {} bytes", whole),
           .got = fmt::format("nothing for {:.0f} s", waited.seconds()),
           .fix = "train with --snapshot-every 0"});
    }
    wait_while(offer, offer.state.load());
  }
}

std::atomic<uint64_t>& SnapshotMemory::mark(size_t slot, int worker) const {
  return reinterpret_cast<std::atomic<uint64_t>*>(
      slots_[slot]->bytes().data())[worker];
}

uint64_t SnapshotMemory::stamp_of(size_t slot) const {
  const uint64_t stamp = mark(slot, 0).load();
  for (int worker = 1; worker < block_.workers(); ++worker) {
    if (mark(slot, worker).load() != stamp) return 0;
  }
  return stamp;
}

std::span<std::byte> SnapshotMemory::content(size_t slot) const {
  return slots_[slot]->bytes().subspan(marks_bytes(block_), bytes_);
}

size_t SnapshotMemory::newest_slot() const {
  return stamp_of(0) > stamp_of(1) ? 0 : 1;
}

std::vector<SnapshotMemory::Saved> SnapshotMemory::complete() const {
  std::vector<Saved> saved;
  const size_t newest = newest_slot();
  for (const size_t slot : {newest, 1 - newest}) {
    const uint64_t stamp = stamp_of(slot);
    if (stamp == 0) continue;
    saved.push_back({.slot = slot, .stamp = stamp, .bytes = content(slot)});
  }
  return saved;
}

void SnapshotMemory::discard(const Saved& saved) {
  // If only one mark were removed, the slot would look complete as soon as that
  // worker has saved the same step again.
  for (int worker = 0; worker < block_.workers(); ++worker) {
    mark(saved.slot, worker).store(0);
  }
}

std::span<std::byte> SnapshotMemory::begin() {
  filled_ = 1 - newest_slot();
  // Without its mark the slot is not a snapshot, even if this worker is killed
  // while others still write.
  mark(filled_, block_.own_slot()).store(0);
  return content(filled_);
}

void SnapshotMemory::end(uint64_t stamp) {
  mark(filled_, block_.own_slot()).store(stamp);
}

void SnapshotHolder::look() {
  SnapshotOffer& offer = block_.header().snapshots;
  if (offer.state.load() != State::kOffered) return;
  State state = State::kNone;
  try {
    slots_ = {shm::Segment::adopt(offer.slots[0]),
              shm::Segment::adopt(offer.slots[1])};
    offer.slots = {slots_[0]->address(), slots_[1]->address()};
    state = State::kHeld;
  } catch (const OutOfResources& error) {
    log_warning("launch", text_of(error));
  } catch (const CommError& error) {
    // The worker that offered it has ended.
    log_debug("launch", text_of(error));
  }
  set_state(offer, state);
}

}  // namespace lockstep::control
