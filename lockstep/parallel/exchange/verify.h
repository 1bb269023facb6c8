#pragma once

namespace lockstep {

/// When a wrapper proves that it computes what the module alone would: it
/// compares a replica with the module itself, bit by bit, and in train_step()
/// the shards' losses with the loss of all shards together.
enum class Verify {
  kNever,
  /// Before the first step, after a rebuild(), and for a new loss function.
  kFirst,
  /// Also before the steps 2, 4, 8, ..., with two samples of a shard. Finds
  /// what the program changes later: a member of a submodule, an element of a
  /// vector, the weighting of a loss.
  kDoubling,
};

}  // namespace lockstep
