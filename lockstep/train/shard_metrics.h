#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/comm/world.h"
#include "lockstep/train/metrics.h"

namespace lockstep::train {

/// What the loss function told of each shard, over all ranks.
///
/// The sums over samples are kept shard by shard, and the shards are added up
/// in their order at last. So the numbers are the same to the bit on any number
/// of devices and ranks that share the shards.
class ShardMetrics {
 public:
  /// Collective where it is called so.
  ShardMetrics(World world, int64_t shards);

  /// Of one of this rank's shards, of `samples`. Called in its thread.
  void add(int64_t shard, int64_t samples, const LossAndMetrics& values,
           bool with_loss);
  /// Likewise, in place of what was added before, of a computation that is
  /// made again.
  void replace(int64_t shard, int64_t samples, const LossAndMetrics& values,
               bool with_loss);

  /// Sums over the samples of all ranks since the last call, which are
  /// forgotten. `extra` is summed over the ranks as it is. Collective. Throws
  /// TrainError if the ranks, or two calls, have metrics of other names.
  Metrics reduce(std::vector<double>& extra);

 private:
  void agree_on_names();
  size_t place_of(const std::string& name);

  World world_;
  const int64_t shards_;
  std::mutex mutex_;
  bool is_agreed_ = false;
  std::vector<std::string> names_;
  std::vector<std::vector<double>> sums_;  // by name, then by shard
};

}  // namespace lockstep::train
