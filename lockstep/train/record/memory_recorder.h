#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "lockstep/base/stopwatch.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/train/callback.h"
#include "lockstep/train/record/thinned_series.h"
#include "lockstep/train/step/step_accounts.h"

namespace lockstep::training {

/// The memory of a rank's devices after a step.
struct MemorySample {
  int64_t step = 0;
  double seconds = 0;
  std::vector<int64_t> held_bytes, peak_bytes;  // by device
  int64_t host_held_bytes = 0, host_peak_bytes = 0;
};

/// Records after steps how much memory this rank's devices use, for at most 256
/// steps of a run. Every rank records the same steps.
class MemoryRecorder : public Callback {
 public:
  static constexpr size_t kMaxPoints = 256;

  /// `devices` reads the accounts of this rank's devices.
  explicit MemoryRecorder(std::function<std::vector<DeviceUse>()> devices)
      : devices_(std::move(devices)) {}

  /// Also reads the account of memory that belongs to no device.
  void after_step(const RunState& at, const Metrics& metrics) override;
  /// Returns the history of all ranks' devices, in the order of
  /// RunReport::devices. Collective.
  MemoryHistory gather(const ProcessGroup& world) const;

 private:
  std::function<std::vector<DeviceUse>()> devices_;
  Stopwatch since_begin_;
  ThinnedSeries<MemorySample> points_{kMaxPoints};
};

}  // namespace lockstep::training
