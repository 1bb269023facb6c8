#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/stopwatch.h"

// Measures how busy a machine is with other things than the measured program.
namespace lockstep::tools {

/// Time that cores have spent since the machine started, in seconds summed over
/// the cores.
struct CoreTimes {
  int cores = 0;
  double busy_s = 0;
  /// Time that the host of a virtual machine gave to others although there was
  /// work.
  double stolen_s = 0;
};

/// Reads the times of `cores` from the text of /proc/stat (proc(5)), in ticks
/// of 1/`ticks_per_s` seconds. Cores that are missing in the text are left out.
CoreTimes core_times(const std::string& proc_stat,
                     const std::vector<int>& cores, double ticks_per_s);

/// Returns the seconds since the machine started in which at least one process
/// waited for a core: "some" of /proc/pressure/cpu. Returns nullopt if the text
/// has no such line.
std::optional<double> waiting_seconds(const std::string& pressure);

/// Load on the cores of this process during an observation.
struct MachineLoad {
  int cores = 0;
  double seconds = 0;
  double other_s = 0;   ///< CPU time of other processes
  double stolen_s = 0;  ///< CPU time that other virtual machines used
  std::optional<double> waiting_s;  ///< time in which some process had no core

  /// Returns the average number of cores that other processes used.
  double other_cores() const;
  double stolen_cores() const;
  /// Returns true if other processes used so much, a twentieth of the cores,
  /// that the measurement is unreliable.
  bool is_busy() const;

  MachineLoad& operator+=(const MachineLoad& later);
};

/// Returns the difference between two readings that are `seconds` apart,
/// without the `own_s` that this process and its children used.
MachineLoad load_between(const CoreTimes& before, const CoreTimes& after,
                         double seconds, double own_s);

/// Observes the machine from construction on. Our own time is that of this
/// process and of its children that have ended and were waited for.
class LoadWatch {
 public:
  LoadWatch();
  /// Returns nullopt if the system does not report its load.
  std::optional<MachineLoad> load() const;

 private:
  struct Reading {
    CoreTimes times;
    double own_s = 0;
    std::optional<double> waiting_s;
  };
  static Reading read();

  Reading begin_;
  Stopwatch watch_;  // since begin_
};

/// Returns a note for readers of the figures, "Other processes used 1.3 of 2
/// cores while this was measured ...", or "" if the machine was not busy.
/// `round_loads` is the load in each round.
std::string busy_text(const std::vector<MachineLoad>& round_loads);

}  // namespace lockstep::tools
