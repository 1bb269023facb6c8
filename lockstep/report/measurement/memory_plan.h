#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/report/measurement/timed_run.h"

namespace lockstep::report {

/// What a device holds at the most in a step, in bytes.
struct DeviceMemory {
  /// Beside what is held once for several devices.
  int64_t parameters = 0;
  int64_t optimizer = 0;
  /// Sums of gradients of shards that are done, which wait for others.
  int64_t gradients = 0;
  /// What a rank sends and receives gradients in.
  int64_t buckets = 0;
  /// Of the shard that is computed: activations, its gradients, and casts of
  /// weights.
  int64_t activations = 0;

  int64_t total() const {
    return parameters + optimizer + gradients + buckets + activations;
  }
};

/// Another way to run the same batch, which takes less memory.
struct MemoryChoice {
  std::string options;  ///< "--accumulate 4"
  int64_t total = 0;    ///< bytes of all devices together
  bool fits = false;
};

struct MemoryPlan {
  std::string model;
  int64_t parameters = 0;  ///< elements
  int64_t devices = 1;
  int64_t shards = 1;
  int64_t samples_of_shard = 1;  ///< of the largest one
  int64_t shared = 0;            ///< bytes held once for all devices
  DeviceMemory device;           ///< of each
  int64_t limit = 0;             ///< bytes there are for all devices
  /// False: the shard was too large to be tried, and the figures follow from
  /// smaller ones.
  bool is_measured = false;
  std::vector<MemoryChoice> choices;

  int64_t total() const { return shared + devices * device.total(); }
};

/// Runs one shard on this machine's CPU, forward and backward, as the options
/// of `run` say, and adds up what each device would hold. `limit`: bytes there
/// are; 0: what this host has available. `shares_memory`: several ranks do.
MemoryPlan make_memory_plan(const TimedRun& run, int64_t limit,
                            bool shares_memory);

}  // namespace lockstep::report
