#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/train/run_report.h"

// Values that follow from the reports of runs.
namespace lockstep::tools {

using training::kPhases;
using training::Phase;

/// Names of training loops that users write, which are used like strategy
/// names: DataParallel or DistributedDataParallel around the model, backward(),
/// and the step() that optim::fuse() makes of an optimizer of torch::optim.
inline constexpr const char* kDpLoop = "dp-loop";
inline constexpr const char* kDdpLoop = "ddp-loop";
/// The same loops with the step() of torch::optim itself.
inline constexpr const char* kDpLoopUnfused = "dp-loop-unfused";
inline constexpr const char* kDdpLoopUnfused = "ddp-loop-unfused";

/// Returns the four names above.
const std::vector<std::string>& own_loops();

/// Returns true if the strategy or loop of this name runs one process per
/// device.
bool has_ranks(const std::string& strategy);
/// Returns the label of device number `device` of a run: "cpu:0", or "rank 0
/// cpu:0" for runs with ranks, because two hosts may use the same device name.
std::string device_label(const training::RunReport& report, size_t device);

/// Returns the sum of all phases.
double total(const training::PhaseReport& phases);

/// Returns the seconds of the mean step that belong to no phase. Returns
/// nullopt if the phases are longer than the step: they are then phases of
/// other steps, or come from a version whose phases overlapped.
std::optional<double> outside_phases(const training::RunReport& report);

/// Returns the loss of each recorded step with its step number, counted from 1.
std::vector<std::pair<int64_t, double>> losses_by_step(
    const training::RunReport& report);

/// Returns all evaluations in the order of steps, including the one at the end.
std::vector<training::EvaluationReport> evaluations_of(
    const training::RunReport& report);

/// Returns the differences between the work of two runs, with both values:
/// "batch_size 64 and 128". Work is the model and its parameters, the samples
/// of a step and their tokens, and the precision. How the work is done does not
/// count: the strategy, the number of devices, ranks and shards. A value that
/// one of the reports does not have counts as equal.
std::vector<std::string> differences_of_work(const training::RunReport& first,
                                             const training::RunReport& second);

}  // namespace lockstep::tools
