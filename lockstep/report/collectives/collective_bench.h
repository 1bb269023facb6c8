#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/report/collectives/collective_case.h"

namespace lockstep::report {

struct CollectiveBenchOptions {
  Collective collective = Collective::kAllReduce;
  std::vector<int64_t> sizes;  ///< bytes of a message
  at::ScalarType type = torch::kFloat32;
  bool with_shm = true;
  bool with_resident = true;  ///< shm's all-reduce of World::shared_memory
  /// Gloo as c10d has it, and Lockstep's sum in a fixed order over it.
  bool with_gloo = true;
  bool checks_data = true;
  std::optional<int64_t> iterations;  ///< none: 20, and 5 above 32 MiB
  int64_t warmup = 3;
};

/// How one backend did at one size.
struct CollectiveFigure {
  std::string way;    ///< "shm resident", "shm", "c10d gloo", "gloo"
  double time_s = 0;  ///< median of the rounds, each that of the slowest rank
  double algorithm_gb_s = 0;      ///< size over time
  double bus_gb_s = 0;            ///< times bus_factor()
  int64_t wrong = 0;              ///< elements, of all ranks and rounds
  std::optional<double> speedup;  ///< over c10d gloo, if that was timed
};

struct CollectiveSize {
  int64_t bytes = 0;
  int64_t count = 0;
  std::vector<CollectiveFigure> figures;
  /// All ranks at once copying so many bytes, each its own.
  double copy_s = 0;
  /// All ranks at once changing so many bytes where they are.
  double update_s = 0;

  /// Of the faster of the two, which read and write as much.
  double ceiling_s() const { return std::min(copy_s, update_s); }
};

struct CollectiveReport {
  Collective collective = Collective::kAllReduce;
  std::string type;
  int ranks = 0;
  bool is_checked = true;
  std::vector<CollectiveSize> sizes;

  int64_t wrong() const;
};

/// Called by every rank of a job of at least 2 (see init()). In every round
/// each way is used once, one after the other, so that what disturbs the host
/// disturbs all of them. `on_size` is told each size when it is done.
CollectiveReport run_collective_bench(
    const CollectiveBenchOptions& options,
    const std::function<void(const CollectiveSize&)>& on_size);

/// An in-place sum of n resident buffers must read and write each element n
/// times, as n ranks do that each copy, or change, as many: the speed of the
/// sum over theirs. None if it was not timed.
std::optional<double> share_of_ceiling(const CollectiveReport& report,
                                       const CollectiveSize& size);

/// What the ranks of that ceiling read and write.
double ceiling_gb_s(const CollectiveReport& report, const CollectiveSize& size);

}  // namespace lockstep::report
