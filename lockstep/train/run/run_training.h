#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/train/run_report.h"
#include "lockstep/train/task.h"
#include "lockstep/train/train_options.h"

namespace lockstep::training {

class TrainerBase;

/// The surroundings of a run: what its process gives it besides the options.
struct RunContext {
  ProcessGroup world{};  ///< kDistributed: the ranks
  /// Polled between steps. Returns the number of the signal for which to stop,
  /// or 0. If one rank stops, all ranks stop.
  std::function<int()> stop{};
  /// Called after another rank was lost. Sets context.world and
  /// options.devices() to new values, for which it may wait, as init_next()
  /// does. Returns false if the run can't continue.
  std::function<bool(RunContext& context, TrainOptions& options,
                     const std::string& why)>
      rejoin{};
  /// The command line, for run.json. It also tells the run from others that
  /// the same agent starts.
  std::vector<std::string> command{};
  /// Called on rank 0 before the first step, once all options have been
  /// accepted.
  std::function<void()> on_begin{};
};

/// Returns what a run trains for `trainer`, which must outlive it.
std::unique_ptr<Task> task_of(TrainerBase& trainer);

/// Trains `task` and returns the report. With kDistributed, every rank of
/// context.world calls it with the same options. Rank 0 writes and prints, and
/// has the complete report.
///
/// Throws TrainError if the loss is not finite (naming the step and the place
/// where this was first seen), and whatever the data, the devices and the model
/// throw.
RunReport run_training(Task& task, const TrainOptions& options,
                       const RunContext& context = {});

}  // namespace lockstep::training
