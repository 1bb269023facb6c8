#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/comm/process_group.h"
#include "lockstep/data/batch_source.h"
#include "lockstep/tasks/workload.h"
#include "lockstep/train/train_options.h"
#include "lockstep/train/training_plan.h"

namespace lockstep::tools {

/// A run on random samples that is to be measured.
struct TimedRun {
  training::TrainOptions train{};
  ProcessGroup world{};  ///< ddp: the ranks
  std::shared_ptr<const tasks::Workload> work{};
  int64_t steps = 30;  ///< measured steps
  int64_t warmup = 5;  ///< steps before them
  bool fuses = true;   ///< own loops: optim::fuse() replaces torch's step()
  /// Path of a Chrome trace of the last steps, which rank 0 writes. Empty:
  /// none.
  std::string trace{};
};

/// Returns this rank's part of a random batch.
data::Batch random_batch(const TimedRun& run, const training::Plan& plan);

}  // namespace lockstep::tools
