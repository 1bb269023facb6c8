#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/data/loader.h"
#include "lockstep/models/model.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/train/run_report.h"

namespace lockstep::train {

/// Loss and accuracy over all of `loader`, in evaluation mode and without
/// gradients; the batches are shared by the model's devices. Each rank of
/// `world` evaluates the part that its loader makes, and gets the result of
/// all. Leaves the model in the mode it was in. `stop` is polled between
/// batches; a report of 0 samples says that it was stopped.
TestReport evaluate(DataParallel<models::Model>& model, data::Loader& loader,
                    const std::function<bool()>& stop = {},
                    const World& world = {});

struct EvalOptions {
  std::string checkpoint;  ///< a checkpoint, or a run's folder: the newest
  data::DataSpec data;
  std::vector<Device> devices;
  int64_t batch_size = 250;
  int loader_workers = 1;
  bool channels_last = false;
};

/// What the run of a checkpoint was trained on. Throws CheckpointError if the
/// checkpoint does not say it.
data::DataSpec data_of(const CheckpointInfo& info);

struct EvalReport {
  std::string checkpoint;  ///< the folder that was loaded
  CheckpointInfo info;
  TestReport test;
  double seconds = 0;
};

/// Evaluates a checkpoint on the test split. Throws what loading the
/// checkpoint and opening the data throw.
EvalReport evaluate_checkpoint(const EvalOptions& options);

}  // namespace lockstep::train
