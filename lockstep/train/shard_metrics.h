#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/comm/world.h"
#include "lockstep/train/metrics.h"

namespace lockstep::train {

/// A metric over several shards.
struct MetricSum {
  double sum = 0;     ///< of the means, times their weights
  double weight = 0;  ///< 0: no unit counted, and sum is 0

  /// 0 if nothing was counted.
  double mean() const { return weight == 0 ? 0 : sum / weight; }
};
using MetricSums = std::map<std::string, MetricSum>;

Metrics means_of(const MetricSums& sums);

/// The metrics of each shard, over all ranks.
///
/// Sums are kept shard by shard, and the shards are added up in their order at
/// the end. So the numbers have the same bits on any number of devices and
/// ranks that share the shards.
class ShardMetrics {
 public:
  /// Collective if `world` has several ranks.
  ShardMetrics(World world, int64_t shards);

  /// Adds the metrics of one of this rank's shards, which has `samples`. Called
  /// in the shard's thread.
  void add(int64_t shard, int64_t samples, const std::vector<Metric>& metrics);
  /// Replaces what was added for the shard, which is computed again.
  void replace(int64_t shard, int64_t samples,
               const std::vector<Metric>& metrics);

  /// Returns the sums over all ranks since the last call, and forgets them.
  /// `extra` is summed over the ranks as it is. Collective. Throws TrainError
  /// if the ranks, or two calls, have metrics of other names.
  MetricSums reduce(std::vector<double>& extra);

 private:
  void agree_on_names();
  size_t place_of(const std::string& name);

  World world_;
  const int64_t shards_;
  std::mutex mutex_;
  bool is_agreed_ = false;
  std::vector<std::string> names_;
  std::vector<std::vector<MetricSum>> sums_;  // by name, then by shard
};

}  // namespace lockstep::train
