#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/control/control_block.h"
#include "lockstep/shm/segment.h"

namespace lockstep::control {

/// Two memory slots for the latest state of a run. The agent of this node holds
/// them. Each worker of the node fills a part of one slot while the other slot
/// keeps the previous state. One slot is therefore always complete, whichever
/// process is killed.
class SnapshotMemory {
 public:
  /// Returns the memory that the agent holds, or nothing before the first
  /// snapshot of the job. Throws CommError if it can't be mapped.
  static std::optional<SnapshotMemory> find(const ControlBlock& block);
  /// Returns the memory with slots of at least `bytes`. If the job has no such
  /// memory yet, the worker with local rank 0 creates it and the others wait.
  /// Throws CommError if the agent does not open it in time.
  static SnapshotMemory make(const ControlBlock& block, size_t bytes);

  size_t bytes() const { return bytes_; }

  struct Saved {
    size_t slot = 0;
    uint64_t stamp = 0;
    std::span<const std::byte> bytes;
  };
  /// Returns the complete snapshots, that with the largest stamp first.
  std::vector<Saved> complete() const;
  /// Makes a snapshot incomplete, because its bytes are damaged. Otherwise
  /// begin() would keep it and return the slot of an older one. Any worker of
  /// the node calls this, while no worker is between begin() and end().
  void discard(const Saved& saved);

  /// Returns the slot to fill, which is not the newest. It becomes a snapshot
  /// when every worker of the node has called end() with the same stamp. The
  /// stamp must not be 0, and must be larger than the previous one. It must
  /// differ between attempts, so that parts of two attempts are never taken for
  /// a complete snapshot.
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

/// Holds the snapshot memory in the agent, once a worker offers it.
class SnapshotHolder {
 public:
  explicit SnapshotHolder(ControlBlock block) : block_(std::move(block)) {}
  /// Opens the memory if a worker offers it. Call this often.
  void look();

 private:
  ControlBlock block_;
  std::array<std::shared_ptr<const shm::Segment>, 2> slots_;
};

}  // namespace lockstep::control
