#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::monitor {

/// What a rank does.
enum class Activity { kStarting, kTraining, kEvaluating, kSaving, kEnded };

/// "starting", "training", "evaluating", "saving", "ended".
const char* to_string(Activity activity);

/// A device of a rank, over the last half second or so.
struct DeviceStatus {
  std::string name;          ///< "cpu:0"
  double busy_fraction = 0;  ///< of the time in steps, 0 to 1
  /// Of tensors and of blocks kept for the next ones, as nvidia-smi counts.
  int64_t memory_bytes = 0;
  int64_t memory_peak_bytes = 0;  ///< of tensors
};

/// A point of the loss curve.
struct LossPoint {
  int64_t step = 0;  ///< counted from 1
  double loss = 0;
};

/// What a rank says of itself while it runs, as a file in its job's folder.
/// Times are seconds since 1970.
struct RankStatus {
  std::string host;
  std::string machine;  ///< the kernel and namespace of its pid; machine()
  int64_t pid = 0;
  /// When the process began, in the kernel's ticks: another process may get
  /// the same pid later.
  std::string process_start;
  int64_t rank = 0;
  int64_t world_size = 1;  ///< ranks
  std::string model;
  std::string strategy;
  std::string backend;  ///< of several ranks
  Activity activity = Activity::kStarting;
  int64_t step = 0;  ///< done
  int64_t total_steps = 0;
  int64_t epoch = 0;         ///< counted from 0
  double step_s = 0;         ///< the mean since the last status
  double samples_per_s = 0;  ///< of all ranks
  /// Of the time: waiting for ranks or data, and exchanging what nothing
  /// hides. Only known while somebody watches.
  std::optional<double> wait_fraction;
  std::optional<double> communication_fraction;
  std::vector<DeviceStatus> devices;
  int64_t restarts = 0;
  double started_at = 0;
  double updated_at = 0;
  /// Rank 0's: the loss over the run, with fewer points the longer it is.
  std::vector<LossPoint> losses;
};

/// One line of JSON.
std::string to_json(const RankStatus& status);
/// Reads what to_json() wrote, of a file that may be hostile. Throws IoError.
RankStatus rank_status_from_json(std::string_view text);

/// Seconds since 1970.
double now_s();
/// Processes that have the same one can see each other's pid.
std::string machine();
/// RankStatus::process_start of process `pid`; "" if there is none.
std::string process_start(int64_t pid);

}  // namespace lockstep::monitor
