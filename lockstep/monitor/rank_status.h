#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::monitor {

/// The current activity of a rank.
enum class Activity { kStarting, kTraining, kEvaluating, kSaving, kEnded };

/// Returns "starting", "training", "evaluating", "saving" or "ended".
const char* to_string(Activity activity);

/// The state of a rank's device, over about the last half second.
struct DeviceStatus {
  std::string name;          ///< "cpu:0"
  double busy_fraction = 0;  ///< fraction of the time in steps, 0 to 1
  /// Memory of tensors. Blocks that are kept for later tensors don't count,
  /// neither here nor in the peak.
  int64_t memory_bytes = 0;
  int64_t memory_peak_bytes = 0;
};

/// A point of the loss curve.
struct LossPoint {
  int64_t step = 0;  ///< counted from 1
  double loss = 0;
};

/// The status of a running rank, which it writes to a file in its job's folder.
/// Times are seconds since 1970.
struct RankStatus {
  std::string host;
  std::string machine;  ///< the kernel and namespace of its pid; machine()
  int64_t pid = 0;
  /// Start time of the process, in the kernel's ticks. Another process may get
  /// the same pid later.
  std::string process_start;
  int64_t rank = 0;
  int64_t world_size = 1;  ///< number of ranks
  std::string model;
  std::string strategy;
  std::string backend;  ///< only set for several ranks
  Activity activity = Activity::kStarting;
  int64_t step = 0;  ///< number of steps done
  int64_t total_steps = 0;
  int64_t epoch = 0;         ///< counted from 0
  double step_s = 0;         ///< mean since the last status
  double samples_per_s = 0;  ///< of all ranks
  /// Fractions of the time spent waiting for ranks or data, and spent on
  /// communication that no computation hides. Only known while the job is
  /// watched.
  std::optional<double> wait_fraction;
  std::optional<double> communication_fraction;
  std::vector<DeviceStatus> devices;
  int64_t restarts = 0;
  double started_at = 0;
  double updated_at = 0;
  /// Loss over the run, only on rank 0. The points get sparser as the run gets
  /// longer.
  std::vector<LossPoint> losses;
};

/// Returns one line of JSON.
std::string to_json(const RankStatus& status);
/// Reads the output of to_json() from a file that may be hostile. Throws
/// IoError.
RankStatus rank_status_from_json(std::string_view text);

/// Returns the seconds since 1970.
double now_s();
/// Returns an id of the kernel and pid namespace. Processes with the same id
/// can see each other's pid.
std::string machine();
/// Returns RankStatus::process_start of process `pid`, or "" if there is no
/// such process or it has ended. A process that has ended stays in the list of
/// processes until its parent has read its exit code.
std::string process_start(int64_t pid);

}  // namespace lockstep::monitor
