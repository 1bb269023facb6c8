#pragma once

#include "lockstep/report/comparison/comparison.h"
#include "lockstep/report/tables/section.h"

namespace lockstep::report {

/// Practical 5, part 3: step time and its spread, total time, speed-up with its
/// interval, samples/s.
Section set_up_section(const Comparison& comparison);
/// Parts 2, 4 and 5: of each device its samples, memory peak and busy time,
/// and the memory that all devices share. No rows where nothing is known.
Section device_section(const Comparison& comparison);
/// Where the time of the mean step goes: a row a phase, a column a run, and
/// rows for what is in no phase and for their sum, the step. `bar_width`:
/// columns of the bar behind each percentage.
Section phase_section(const Comparison& comparison, int bar_width);
/// How many times as fast each run is as PyTorch's. No rows without PyTorch.
Section ratio_section(const Comparison& comparison);

}  // namespace lockstep::report
