#pragma once

#include "lockstep/report/comparison/comparison.h"
#include "lockstep/report/tables/section.h"

namespace lockstep::report {

/// Practical 6, part 6: DataParallel beside DistributedDataParallel, in the
/// practical's four rows: processes, who splits the data, how evenly the
/// devices are used, and how it scales. A row's second line has an empty first
/// cell. "memory 1.50x": the fullest device's peak, in those of the emptiest.
/// "20 % fixed": of a step, what is neither forward nor backward. "1.20x": as
/// many times as fast as the baseline.
///
/// A column for each of Lockstep's runs with dp-classic, dp, dp-loop, ddp and,
/// where there is no ddp, ddp-loop. No rows unless there is one of
/// either kind on several devices.
Section dp_against_ddp_section(const Comparison& comparison);

}  // namespace lockstep::report
