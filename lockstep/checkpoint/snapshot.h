#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/checkpoint/info.h"
#include "lockstep/checkpoint/writer.h"
#include "lockstep/control/control_block.h"
#include "lockstep/control/snapshot_memory.h"
#include "lockstep/control/worker_side.h"

namespace lockstep {

/// A snapshot in memory that the agent of this node holds.
class Snapshot : public SavedState {
 public:
  /// Returns the newest complete snapshot of the run `identity` whose bytes are
  /// those that were saved. Returns nothing without an agent or before the
  /// first snapshot.
  ///
  /// Reads all of it. If a bit has changed, the worker with local rank 0 warns,
  /// naming the tensor, and the snapshot before is tried.
  static std::shared_ptr<const Snapshot> newest(
      const std::string& identity,
      const control::ControlBlock* block = control::control_block());

  const CheckpointInfo& info() const { return info_; }
  using SavedState::load;
  void load(const NamedTensors& module) const override;
  OptimizerState optimizer_state() const override;
  OptimizerState random_state() const override;

 private:
  /// Throws CheckpointError if the bytes are not those that were saved.
  Snapshot(control::SnapshotMemory memory, std::span<const std::byte> bytes);

  control::SnapshotMemory memory_;
  std::span<const std::byte> bytes_;
  CheckpointInfo info_;
};

/// Takes snapshots between two steps. The workers of a node copy the state of
/// the run, each a part, into memory that their agent holds. A worker that is
/// killed therefore takes no state with it. See docs/launcher.md.
class SnapshotWriter {
 public:
  /// `every`: number of steps between snapshots. 0, or without an agent that
  /// would replace a worker: never.
  SnapshotWriter(int64_t every, const std::string& identity,
                 const control::ControlBlock* block = control::control_block());
  ~SnapshotWriter();

  bool is_due(int64_t step, bool is_last) const;
  /// Saves the same content on all ranks. The first call, and one with other
  /// tensors than before, are collective among the workers of a node.
  void save(const CheckpointContent& content);
  /// Discards the snapshot after `step` steps, if there is one: a bit had
  /// perhaps changed before it was taken. Any worker of the node calls this,
  /// while no worker is in save().
  void discard(int64_t step);
  const SnapshotCosts& costs() const { return costs_; }

 private:
  struct Layout;

  const control::ControlBlock* block_;
  int64_t every_ = 0;
  const std::string identity_;
  std::unique_ptr<Layout> layout_;  // of the last snapshot
  std::optional<control::SnapshotMemory> memory_;
  SnapshotCosts costs_;
};

}  // namespace lockstep
