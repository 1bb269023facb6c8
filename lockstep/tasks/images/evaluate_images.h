#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/checkpoint/info.h"
#include "lockstep/data/dataset.h"
#include "lockstep/device/device.h"
#include "lockstep/train/run_report.h"
#include "lockstep/train/train_options.h"

namespace lockstep::tasks {

struct EvalOptions {
  std::string checkpoint;  ///< a checkpoint, or a run's folder: the newest
  data::DataSpec data;
  std::vector<Device> devices;
  int64_t batch_size = 250;
  int loader_workers = 1;
  training::Precision precision = training::Precision::kFloat32;
  bool channels_last = false;
  /// Called before each batch with the number of batches done and of all.
  std::function<void(int64_t done, int64_t total)> on_batch{};
};

/// Returns the data that the run of a checkpoint was trained on. Throws
/// CheckpointError if the checkpoint does not say.
data::DataSpec data_of(const CheckpointInfo& info);

struct EvalReport {
  std::string checkpoint;  ///< the folder that was loaded
  CheckpointInfo info;
  training::TestReport test;
  double seconds = 0;
};

/// Evaluates a checkpoint on the test split. Throws what loading the
/// checkpoint and opening the data throw.
EvalReport evaluate_checkpoint(const EvalOptions& options);

}  // namespace lockstep::tasks
