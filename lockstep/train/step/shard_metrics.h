#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/train/metrics.h"

namespace lockstep::training {

/// A metric over several shards.
struct MetricSum {
  double sum = 0;     ///< sum of the means, times their weights
  double weight = 0;  ///< 0: no units were counted, and sum is 0

  /// Returns the mean; 0 if no units were counted.
  double mean() const { return weight == 0 ? 0 : sum / weight; }
};
using MetricSums = std::map<std::string, MetricSum>;

Metrics means_of(const MetricSums& sums);

/// The metrics of each shard, over all ranks.
///
/// Sums are kept for each shard. At the end the shards are added in their
/// order, so the numbers have the same bits on any number of devices and ranks
/// that share the shards.
class ShardMetrics {
 public:
  /// Collective if `world` has several ranks.
  ShardMetrics(ProcessGroup world, int64_t shards);

  /// Adds the metrics of one of this rank's shards, which has `samples`
  /// samples. Called in the shard's thread.
  void add(int64_t shard, int64_t samples, const std::vector<Metric>& metrics);
  /// Replaces the metrics of the shard, which is computed again.
  void replace(int64_t shard, int64_t samples,
               const std::vector<Metric>& metrics);

  /// Returns the sums over all ranks since the last call, and resets them.
  /// `extra` is also summed over the ranks. Collective. Throws TrainError if
  /// two ranks, or two calls, have metrics of different names.
  MetricSums reduce(std::vector<double>& extra);

 private:
  void agree_on_names();
  std::vector<MetricSum>& sums_of(const std::string& name);
  std::vector<MetricSum>& add_name(const std::string& name);
  std::string names(const char* separator) const;

  ProcessGroup world_;
  const int64_t shards_;
  std::mutex mutex_;
  bool is_agreed_ = false;
  std::map<std::string, std::vector<MetricSum>> sums_;  // [name][shard]
};

}  // namespace lockstep::training
