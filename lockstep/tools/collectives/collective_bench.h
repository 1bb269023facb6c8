#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/json.h"
#include "lockstep/tools/collectives/collective_case.h"

namespace lockstep::tools {

struct CollectiveBenchOptions {
  Collective collective = Collective::kAllReduce;
  std::vector<int64_t> sizes;  ///< bytes of a message
  at::ScalarType type = torch::kFloat32;
  bool with_shm = true;
  bool with_resident =
      true;  ///< also time all-reduce in ProcessGroup::shared_memory
  bool with_tcp = true;
  /// Also time torch.distributed over Gloo (PyTorchCollectives).
  bool with_pytorch = false;
  bool checks_data = true;
  std::optional<int64_t> iterations;  ///< nullopt: 20, and 5 above 32 MiB
  int64_t warmup = 3;
};

/// Result of one backend at one size.
struct CollectiveFigure {
  std::string way;    ///< "shm resident", "shm", "tcp", "PyTorch"
  double time_s = 0;  ///< median over the rounds of the slowest rank's time
  double algorithm_gb_s = 0;  ///< size over time
  double bus_gb_s = 0;        ///< algorithm_gb_s times bus_factor()
  /// Wrong elements in all ranks and rounds, if the data was checked.
  std::optional<int64_t> wrong;
  std::optional<double> speedup;  ///< over PyTorch, if that was timed
};

struct CollectiveSize {
  int64_t bytes = 0;
  int64_t count = 0;
  std::vector<CollectiveFigure> figures;
  /// Time in which all ranks at once copy this many bytes each.
  double copy_s = 0;
  /// Time in which all ranks at once change this many bytes each, in place.
  double update_s = 0;

  /// Returns the faster of the two times. Both operations read and write the
  /// same number of bytes.
  double ceiling_s() const { return std::min(copy_s, update_s); }
};

struct CollectiveReport {
  Collective collective = Collective::kAllReduce;
  std::string type;
  int ranks = 0;
  bool is_checked = true;
  std::vector<CollectiveSize> sizes{};

  int64_t wrong() const;
};

/// Runs the benchmark. Every rank of a job with at least 2 ranks calls it (see
/// init()). Each round runs every way once, so that a disturbance of the host
/// affects all of them. `on_size` is called when a size is done, the last one
/// of the report so far.
CollectiveReport run_collective_bench(
    const CollectiveBenchOptions& options,
    const std::function<void(const CollectiveReport&)>& on_size);

/// Returns the speed of the resident sum as a share of the ceiling. An in-place
/// sum of n resident buffers must read and write each element n times, just as
/// n ranks do that each copy or change that many bytes. Returns nullopt if the
/// resident sum was not timed.
std::optional<double> share_of_ceiling(const CollectiveReport& report,
                                       const CollectiveSize& size);

/// Returns the rate at which the ranks read and write at that ceiling.
double ceiling_gb_s(const CollectiveReport& report, const CollectiveSize& size);

/// Prints results in the format of nccl-tests: a head, a line for each backend,
/// and a summary. If `width` is too small for the columns of nccl-tests, each
/// size has a separate table.
std::string header_text(Collective collective, int ranks, int width);
std::string to_text(const CollectiveReport& report, const CollectiveSize& size,
                    int width);
std::string summary_text(const CollectiveReport& report, int width);
nlohmann::json to_json(const CollectiveReport& report);

}  // namespace lockstep::tools
