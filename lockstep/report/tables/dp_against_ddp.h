#pragma once

#include "lockstep/report/comparison/comparison.h"
#include "lockstep/report/tables/section.h"

namespace lockstep::report {

/// Returns practical 6, part 6: DataParallel next to DistributedDataParallel,
/// in the practical's four rows: processes, what splits the data, how evenly
/// the devices are used, and how it scales. The second line of a row has an
/// empty first cell. "memory 1.50x" is the highest memory peak of the devices
/// as a multiple of the lowest. "20 % fixed" is the share of a step that is
/// neither forward nor backward. "1.20x" means 1.20 times as fast as the
/// baseline.
///
/// There is a column for each of Lockstep's runs with dp-classic, dp, dp-loop,
/// ddp and, if there is no ddp, ddp-loop. No rows unless there is at least one
/// run of each kind on several devices.
Section dp_against_ddp_section(const Comparison& comparison);

}  // namespace lockstep::report
