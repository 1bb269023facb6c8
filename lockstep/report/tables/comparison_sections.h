#pragma once

#include "lockstep/report/comparison/comparison.h"
#include "lockstep/report/tables/section.h"

namespace lockstep::report {

/// Returns practical 5, part 3: step time and its spread, total time, speed-up
/// with its interval, samples/s.
Section set_up_section(const Comparison& comparison);
/// Returns parts 2, 4 and 5: samples, peak memory and busy time of each device,
/// and the memory that all devices share. No rows if nothing is known.
Section device_section(const Comparison& comparison);
/// Returns where the time of the mean step goes. There is a row per phase and a
/// column per run, and rows for the time outside all phases and for the sum,
/// which is the step. `bar_width` is the number of columns of the bar after
/// each percentage.
Section phase_section(const Comparison& comparison, int bar_width);
/// Returns how many times as fast each run is as PyTorch's runs. No rows
/// without PyTorch.
Section ratio_section(const Comparison& comparison);

}  // namespace lockstep::report
