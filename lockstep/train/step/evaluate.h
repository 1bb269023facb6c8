#pragma once

#include <functional>

#include "lockstep/comm/process_group.h"
#include "lockstep/data/loader.h"
#include "lockstep/parallel/engine.h"
#include "lockstep/train/run_report.h"
#include "lockstep/train/task.h"

namespace lockstep::training {

/// Computes the loss and the metrics of `task` over all of `loader`, in
/// evaluation mode and without gradients. Each shard is computed on its device.
///
/// The loss is the mean over all samples, the mean over all units if the loss
/// states its weight, or the sum over all samples (Task::loss_reduction()).
/// Each rank of `world` evaluates the part that its loader makes. Every rank
/// gets the result of all ranks, which has the same bits for the same number of
/// shards. The model is left in the mode that it was in. `stop` is polled
/// between batches. A report of 0 samples means that some rank was stopped.
/// Collective. Throws TrainError (empty-batch) if the weights of all losses add
/// up to 0.
TestReport evaluate(Engine& engine, const Task& task, data::Loader& loader,
                    const std::function<bool()>& stop = {},
                    const ProcessGroup& world = {});

}  // namespace lockstep::training
