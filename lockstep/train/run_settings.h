#pragma once

#include <string>

#include "lockstep/checkpoint/run_record.h"
#include "lockstep/train/options.h"
#include "lockstep/train/plan.h"
#include "lockstep/train/task.h"

namespace lockstep::train {

/// The name of the one setting that only says how far a run goes.
inline constexpr const char* kTotalSteps = "total_steps";

/// The name of the one setting that only says where the data were, for `eval`:
/// they are told by data_sha256.
inline constexpr const char* kDataDir = "data_dir";

/// The name of a setting that a task has if its schedule looks at the end of
/// the run: a run of another length is then another run.
inline constexpr const char* kLooksAtTotalSteps = "schedule_to_the_end";

/// The name of the setting that says how many ranks have a state of PowerSGD's.
inline constexpr const char* kPowerSgdRanks = "powersgd_ranks";

/// Everything that the bits of a run depend on, beside the model and its
/// position. Neither the strategy nor the number of devices is among it.
Settings settings_of(const Task& task, const TrainOptions& options,
                     const Plan& plan, int64_t total_steps,
                     const std::string& data_sha256);

/// What tells the `number`th run of this process from others that its agent may
/// have started: its command and model.
std::string identity_of_run(const Task& task, const TrainOptions& options,
                            int number);

/// Of Lockstep, LibTorch, and what they compute on.
Settings versions_of(const Plan& plan);

}  // namespace lockstep::train
