#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "lockstep/control/control_block.h"
#include "lockstep/shm/segment.h"

namespace lockstep::control {

/// Two slots of memory that the agent of this node holds, for the state of a
/// run after its last steps. The workers of the node fill a slot together, each
/// a part of it; the other slot has what was saved before, so that one of them
/// is complete at any time, whichever process is killed.
class SnapshotMemory {
 public:
  /// The memory that the agent holds; nothing before the first snapshot of the
  /// job. Throws CommError if it can't be mapped.
  static std::optional<SnapshotMemory> find(const ControlBlock& block);
  /// The same, with slots of at least `bytes`. Where the job has no such memory
  /// yet, the worker with local rank 0 makes it and the others wait. Throws
  /// CommError if the agent does not take hold of it in time.
  static SnapshotMemory make(const ControlBlock& block, size_t bytes);

  size_t bytes() const { return bytes_; }

  struct Saved {
    uint64_t stamp = 0;
    std::span<const std::byte> bytes;
  };
  /// The complete snapshot with the greatest stamp, if there is one.
  std::optional<Saved> newest() const;

  /// The slot to fill: not the newest. It becomes a snapshot when every worker
  /// of the node has called end() with the same stamp: not 0, greater than
  /// before, and a different one in each attempt, so that parts of two attempts
  /// are never taken for a complete snapshot.
  std::span<std::byte> begin();
  void end(uint64_t stamp);

 private:
  SnapshotMemory(const ControlBlock& block,
                 std::array<std::shared_ptr<const shm::Segment>, 2> slots);

  std::atomic<uint64_t>& mark(size_t slot, int worker) const;
  uint64_t stamp_of(size_t slot) const;
  size_t newest_slot() const;
  std::span<std::byte> content(size_t slot) const;

  ControlBlock block_;
  std::array<std::shared_ptr<const shm::Segment>, 2> slots_;
  size_t bytes_ = 0;
  size_t filled_ = 0;  // the slot that begin() chose
};

/// The agent's part: takes hold of memory that a worker offers.
class SnapshotHolder {
 public:
  explicit SnapshotHolder(ControlBlock block) : block_(std::move(block)) {}
  /// Takes hold of the memory if one is offered. Call it often.
  void look();

 private:
  ControlBlock block_;
  std::array<std::shared_ptr<const shm::Segment>, 2> slots_;
};

}  // namespace lockstep::control
