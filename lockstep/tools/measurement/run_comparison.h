#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/device/device.h"
#include "lockstep/tools/comparison/comparison.h"
#include "lockstep/tools/measurement/comparison_rounds.h"
#include "lockstep/tools/measurement/pytorch_peer.h"

namespace lockstep::tools {

struct CompareOptions {
  Work work;
  std::vector<std::string> strategies{"single", "dp-classic", "dp", "ddp"};
  std::string devices = "auto";  ///< as text, for the processes
  RoundLimits rounds;
  int64_t shards = 0;            ///< 0: one per device
  std::string backend = "auto";  ///< backend of the ranks of ddp and ddp-loop
  bool with_pytorch = false;
  double deadline_s = 600;  ///< deadline of each process
  std::string trace;        ///< folder for Chrome traces; empty: none
  /// Extra options for the processes that run a strategy.
  std::vector<std::string> child_options;
};

/// Returns the path of a strategy's trace in run_compare(): FOLDER/ddp.json.
std::string trace_path(const CompareOptions& options,
                       const std::string& strategy);

/// A process of a set-up that was started.
struct StartedRun {
  std::string label;  ///< label of the set-up
  int64_t round = 0;  ///< counted from 1; 0: a warm-up that is not counted
  int64_t until_round = 1;  ///< round after which verdicts are checked
  int64_t runs_left = 1;  ///< counted runs up to that round, including this one
};

/// Callbacks that show progress.
struct CompareProgress {
  std::function<void(const StartedRun& run)> runs;
  /// Called with a line for the user, such as why there are more rounds, or
  /// that the machine is busy.
  std::function<void(const std::string& text)> says;
};

/// Hidden subcommand of the program that runs one strategy and prints a
/// Measurement.
inline constexpr const char* kStepTimeCommand = "step-time";

/// Runs every strategy once per round, each time in a fresh process, as
/// measure_rounds() does, and pools the rounds. If the machine is busy before
/// the first round, the user is warned. If it was busy later, a note says so.
/// `devices` are the devices that options.devices stands for. `stop` is polled.
/// Once it returns true, the running process is ended and Interrupted is
/// thrown. Throws InvalidArgument if no strategy is named or one is named
/// twice, and Error if a process fails, with the last line that it wrote.
Comparison run_compare(const CompareOptions& options,
                       const std::vector<Device>& devices,
                       const CompareProgress& progress,
                       const std::function<bool()>& stop);

/// Thrown when the user ends the comparison.
class Interrupted : public Error {
 public:
  using Error::Error;
};

}  // namespace lockstep::tools
