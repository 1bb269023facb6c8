#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace lockstep {

/// Where a run is, between two steps. All that is random depends on the seed
/// and on this.
struct RunPosition {
  int64_t step = 0;   ///< steps done
  int64_t epoch = 0;  ///< of the next batch
  int64_t batch = 0;  ///< the next one of that epoch
  /// Of the epoch so far: the samples, and the sum of each metric over them.
  int64_t samples = 0;
  std::map<std::string, double> sums = {};
};

/// By name, as text: {"lr", "0.02"}.
using Settings = std::map<std::string, std::string>;

/// What a run that goes on must know, and find as it was.
struct RunRecord {
  RunPosition position;
  Settings settings;  ///< other ones give other bits
  Settings versions;  ///< of what computes: other ones may give other bits
};

/// A setting that is not now as it was when the checkpoint was written.
struct Difference {
  std::string name;
  std::string text;  ///< "lr: 0.02 in the checkpoint, 0.1 now"
};

std::vector<Difference> differences(const Settings& saved, const Settings& now);

}  // namespace lockstep
