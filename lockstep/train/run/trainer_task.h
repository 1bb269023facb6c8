#pragma once

#include <memory>

#include "lockstep/train/task.h"
#include "lockstep/train/trainer.h"

namespace lockstep::train {

/// Returns what a run trains for `trainer`, which must outlive it.
std::unique_ptr<Task> task_of(TrainerBase& trainer);

}  // namespace lockstep::train
