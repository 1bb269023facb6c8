#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/stopwatch.h"

// How busy a machine is with other things than what is measured on it.
namespace lockstep::report {

/// What cores did since the machine started, in seconds of all of them
/// together.
struct CoreTimes {
  int cores = 0;
  double busy_s = 0;
  /// That the host of a virtual machine gave to others when there was work.
  double stolen_s = 0;
};

/// Reads those of `cores` from what /proc/stat says (proc(5)), in ticks of
/// 1/`ticks_per_s` seconds. Cores that it does not name are left out.
CoreTimes core_times(const std::string& proc_stat,
                     const std::vector<int>& cores, double ticks_per_s);

/// Seconds in which at least one process of the machine waited for a core,
/// since the machine started: "some" of /proc/pressure/cpu. None if it is not
/// there.
std::optional<double> waiting_seconds(const std::string& pressure);

/// What happened on the cores of this process while it was looked at.
struct MachineLoad {
  int cores = 0;
  double seconds = 0;
  double other_s = 0;   ///< CPU time of processes that are not ours
  double stolen_s = 0;  ///< CPU time that other virtual machines had
  std::optional<double> waiting_s;  ///< in which some process had no core

  /// Cores that others had, on the average.
  double other_cores() const;
  double stolen_cores() const;
  /// Whether others had so much that what was measured is not to be relied on:
  /// a twentieth of the cores.
  bool is_busy() const;

  MachineLoad& operator+=(const MachineLoad& later);
};

/// The difference of two readings, `seconds` apart, without the `own_s` that
/// this process and its children used.
MachineLoad load_between(const CoreTimes& before, const CoreTimes& after,
                         double seconds, double own_s);

/// Looks at the machine from when it is made. Ours is what this process and
/// those of its children did that have ended and were waited for.
class LoadWatch {
 public:
  LoadWatch();
  /// None where the system does not tell.
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

/// "Other processes used 1.3 of 2 cores while this was measured ...", for who
/// reads the figures. `of_rounds`: the load in each round. Empty if the machine
/// was not busy.
std::string busy_text(const std::vector<MachineLoad>& of_rounds);

}  // namespace lockstep::report
