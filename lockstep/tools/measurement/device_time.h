#pragma once

#include <cstdint>
#include <thread>
#include <vector>

#include "lockstep/base/trace.h"
#include "lockstep/device/device.h"
#include "lockstep/tools/comparison/step_limit.h"
#include "lockstep/tools/measurement/operator_recording.h"

namespace lockstep::tools {

/// A period of time in which a device does one thing.
struct Claim {
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  /// Claims of a lower rank win where several overlap.
  int rank = 0;
  /// Part of the step; null: belongs to no part, such as the recording itself.
  double StepParts::*part = nullptr;
};

/// Divides the time from `begin_ns` to `end_ns` among the claims, so that each
/// moment counts once. Time that nobody claims is waiting.
StepParts divide_time(int64_t begin_ns, int64_t end_ns,
                      const std::vector<Claim>& claims);

/// The recording of a step of one rank.
struct RecordedStep {
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  OperatorLog operators;
};

/// Returns the parts of a step on `device`, one of the rank's `devices`, in a
/// step that thread `caller` made.
///
/// The operators and the spans of the device's own thread come first, then
/// those of the caller's thread, for which the devices wait unless there is
/// only one. In the update, operators are part of the update.
StepParts time_of_device(const Device& device, size_t devices,
                         std::thread::id caller, const RecordedStep& step,
                         const TraceLog& trace);

}  // namespace lockstep::tools
