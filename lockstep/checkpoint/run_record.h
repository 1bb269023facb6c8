#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace lockstep {

/// The position of a run, between two steps. Everything random depends on the
/// seed and on this position.
struct RunPosition {
  int64_t step = 0;   ///< steps done
  int64_t epoch = 0;  ///< epoch of the next batch
  int64_t batch = 0;  ///< number of the next batch in that epoch
  /// Samples of the epoch so far, and the sum of each metric over them.
  int64_t samples = 0;
  std::map<std::string, double> sums = {};
};

/// Settings by name, as text: {"lr", "0.02"}.
using Settings = std::map<std::string, std::string>;

/// The data that a resumed run needs, and must find unchanged.
struct RunRecord {
  RunPosition position;
  Settings settings;  ///< others give other bits
  Settings versions;  ///< of what computes: others may give other bits
};

/// A setting that has changed since the checkpoint was written.
struct Difference {
  std::string name;
  std::string text;  ///< "lr: 0.02 in the checkpoint, 0.1 now"
};

std::vector<Difference> differences(const Settings& saved, const Settings& now);

}  // namespace lockstep
