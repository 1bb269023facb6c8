#pragma once

#include <string>
#include <vector>

#include "lockstep/tools/comparison/comparison.h"
#include "lockstep/tools/tables/section.h"

// A comparison as tables and in words.
namespace lockstep::tools {

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
/// Returns the share of the limit of each run that has one: how long the matrix
/// products and convolutions of a step take without the rest, what the rest is,
/// and how long the memory needs for the bytes of a step. There is a column per
/// run. No rows if no run has a limit.
Section limit_section(const Comparison& comparison, int bar_width);
/// Returns how many times as fast each run is as PyTorch's runs. No rows
/// without PyTorch.
Section ratio_section(const Comparison& comparison);

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

/// Returns what each run trained, and how: model, batch, shards, start time.
Section work_section(const Comparison& comparison);
/// Returns each epoch's learning rate and metrics.
Section epoch_section(const Comparison& comparison);
/// Returns each evaluation's metrics.
Section evaluation_section(const Comparison& comparison);
/// Returns machine and software. Runs with the same environment share a column.
Section environment_section(const Comparison& comparison);
/// Returns the same table for one environment.
Section environment_section(const training::RunEnvironment& environment);

/// Returns "mlp (6,308,874 parameters), batch of 64, 2 devices".
std::string headline(const Comparison& comparison);
/// Returns "3 rounds of 30 steps (5 to warm up), pooled, a fresh process each;
/// ...".
std::string method(const Comparison& comparison);

/// Returns sentences that explain the tables: whether the speed-up is
/// proportional, which device is fuller and by how much, and where the time
/// goes.
std::vector<std::string> reading(const Comparison& comparison);

}  // namespace lockstep::tools
