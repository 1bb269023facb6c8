#pragma once

#include <functional>

#include "lockstep/comm/world.h"
#include "lockstep/data/loader.h"
#include "lockstep/parallel/engine.h"
#include "lockstep/train/run_report.h"
#include "lockstep/train/task.h"

namespace lockstep::train {

/// Loss and metrics of `task` over all of `loader`, in evaluation mode and
/// without gradients; each shard's are computed on its device. Each rank of
/// `world` evaluates the part that its loader makes, and gets the result of
/// all, which is the same to the bit for the same number of shards. Leaves the
/// model in the mode it was in. `stop` is polled between batches; a report of 0
/// samples says that some rank was stopped. Collective.
TestReport evaluate(Engine& engine, const Task& task, data::Loader& loader,
                    const std::function<bool()>& stop = {},
                    const World& world = {});

}  // namespace lockstep::train
