#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/device/device.h"
#include "lockstep/report/comparison/comparison.h"
#include "lockstep/report/measurement/pytorch_peer.h"
#include "lockstep/report/measurement/rounds.h"

namespace lockstep::report {

struct CompareOptions {
  Work work;
  std::vector<std::string> strategies{"single", "dp-classic", "dp", "ddp"};
  std::string devices = "auto";  ///< as text, for the processes
  RoundLimits rounds;
  int64_t shards = 0;            ///< 0: one per device
  std::string backend = "auto";  ///< of the ranks of ddp and ddp-loop
  bool with_pytorch = false;
  double deadline_s = 600;  ///< of each process
  std::string trace;        ///< folder of a Chrome trace of each; empty: none
  /// Extra options for the processes that run a strategy.
  std::vector<std::string> child_options;
};

/// Where run_compare() writes the trace of a strategy: FOLDER/ddp.json.
std::string trace_path(const CompareOptions& options,
                       const std::string& strategy);

/// A process of a set-up that is started.
struct StartedRun {
  std::string label;        ///< of the set-up
  int64_t round = 0;        ///< counted from 1; 0: to warm up, not counted
  int64_t until_round = 1;  ///< after which verdicts are looked at
  int64_t runs_left = 1;    ///< counted ones until then, with this one
};

/// Told what happens, to show it.
struct CompareProgress {
  std::function<void(const StartedRun& run)> runs;
  /// A line for the user: why there are more rounds, or that the machine is
  /// busy.
  std::function<void(const std::string& text)> says;
};

/// The program's hidden subcommand that runs one strategy and prints a
/// Measurement.
inline constexpr const char* kStepTimeCommand = "step-time";

/// Runs every strategy once a round, each time in a fresh process, as
/// measure_rounds() does, and pools the rounds. A machine that is busy before
/// the first one gets a warning. If it was busy meanwhile, a note says so.
/// `devices`: what options.devices parses to. `stop` is polled; once it is true
/// the process that runs is ended and Interrupted thrown. Throws
/// InvalidArgument for a strategy that does not exist, and Error when a process
/// fails, with the last line it wrote.
Comparison run_compare(const CompareOptions& options,
                       const std::vector<Device>& devices,
                       const CompareProgress& progress,
                       const std::function<bool()>& stop);

/// The user ended the comparison.
class Interrupted : public Error {
 public:
  using Error::Error;
};

}  // namespace lockstep::report
