#pragma once

#include <string>
#include <vector>

#include "lockstep/checkpoint/info.h"
#include "lockstep/train/task.h"
#include "lockstep/train/train_options.h"
#include "lockstep/train/training_plan.h"

namespace lockstep::training {

/// Name of the one setting that only says how long a run is.
inline constexpr const char* kTotalSteps = "total_steps";

/// Name of the one setting that only says where the data were, for `eval`. The
/// data themselves are identified by kDataSha256.
inline constexpr const char* kDataDir = "data_dir";

/// Name of the setting that identifies the data: their fingerprint, or else
/// their number.
inline constexpr const char* kDataSha256 = "data_sha256";

/// Name of a setting that a task has if its schedule depends on the end of the
/// run. A run of another length is then a different run.
inline constexpr const char* kDependsOnTotalSteps = "schedule_to_the_end";

/// Name of the setting that says how many ranks have state of PowerSGD.
inline constexpr const char* kPowerSgdRanks = "powersgd_ranks";

/// Returns everything that the bits of a run depend on, besides the model and
/// the position. Neither the strategy nor the number of devices is included.
Settings settings_of(const Task& task, const TrainOptions& options,
                     const Plan& plan, int64_t total_steps,
                     const std::string& data_sha256);

/// Returns a setting of the run that wrote a checkpoint, or "" if it is not
/// set.
std::string setting_of(const CheckpointInfo& info, const std::string& name);

/// Returns the precision of the run that wrote a checkpoint, kFloat32 if that
/// is not known.
Precision precision_of(const CheckpointInfo& info);

/// Returns a name that distinguishes the `number`th run of this process, by its
/// command and model, from others that its agent may have started.
std::string identity_of_run(const Task& task,
                            const std::vector<std::string>& command,
                            int number);

/// Returns the versions of Lockstep, LibTorch, and what they compute on.
Settings versions_of(const Plan& plan);

}  // namespace lockstep::training
