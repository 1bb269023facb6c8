#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/tools/measurement/timed_run.h"

namespace lockstep::tools {

/// Peak memory of a device during a step, in bytes. If they differ, of the
/// device that holds most.
struct DeviceMemory {
  /// Without the memory that several devices share.
  int64_t parameters = 0;
  int64_t optimizer = 0;
  /// Gradient sums of finished shards, which wait for other shards.
  int64_t gradients = 0;
  /// Buffers in which a rank sends and receives gradients.
  int64_t buckets = 0;
  /// Memory of the shard that is being computed: activations, its gradients,
  /// and casts of weights.
  int64_t activations = 0;

  int64_t total() const {
    return parameters + optimizer + gradients + buckets + activations;
  }
};

/// Another way to run the same batch that takes less memory.
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
  int64_t samples_of_shard = 1;  ///< size of the largest shard
  int64_t shared = 0;            ///< bytes held once for all devices
  DeviceMemory device;           ///< memory of each device
  int64_t limit = 0;             ///< bytes available to all devices
  /// False if the shard was too large to run, or would have run for long, so
  /// the figures are estimates from smaller shards.
  bool is_measured = false;
  /// True if the model could recompute its activations, and does not.
  bool can_recompute = false;
  std::vector<MemoryChoice> choices;

  int64_t total() const { return shared + devices * device.total(); }
};

/// Called before a shard of `samples` samples is run.
using PlanProgress = std::function<void(int64_t samples)>;

/// Runs one shard on this machine's CPU, forward and backward, as the options
/// of `run` say, and adds up what each device would hold. `limit` is the number
/// of available bytes; 0 stands for the memory of the devices, or for what is
/// available on this host if they are slices. `shares_memory` says whether
/// several ranks share memory. If the run does not fit, also runs shards that
/// recompute their activations, if the model can.
MemoryPlan make_memory_plan(const TimedRun& run, int64_t limit,
                            bool shares_memory,
                            const PlanProgress& progress = {});

}  // namespace lockstep::tools
