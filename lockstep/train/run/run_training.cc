#include "lockstep/train/run/run_training.h"

#include <atomic>
#include <optional>

#include <fmt/format.h>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/checkpoint/folder.h"
#include "lockstep/control/worker_side.h"
#include "lockstep/device/memory.h"
#include "lockstep/train/option_table.h"
#include "lockstep/train/run/run_lock.h"
#include "lockstep/train/run/training_run.h"
#include "lockstep/train/state/run_settings.h"

namespace lockstep::training {
namespace {

// Throws before the first step, rather than after the last one, if outputs
// can't be written.
void prepare_outputs(const TrainOptions& options, const ProcessGroup& world) {
  if (world.rank() != 0) return;
  if (!options.log().trace().empty())
    const AtomicFile writable(options.log().trace());
  if (options.out_dir().empty()) return;
  make_directories(options.out_dir());
  const AtomicFile writable(report_path(options));
}

// Gives the lock of the run's folder to rank 0, which may be a different
// process than in the previous attempt. Collective.
void hand_over(std::optional<RunLock>& lock, const TrainOptions& options,
               const ProcessGroup& world) {
  if (options.out_dir().empty()) return;
  const bool is_first = world.rank() == 0;
  if (!is_first) lock.reset();
  world.barrier();
  if (is_first && !lock) lock.emplace(options.out_dir());
}

// Runs to the end, or until another rank is lost. Returns the error in that
// case; nothing is left of the run.
std::optional<CommError> run_once(Task& task, const TrainOptions& options,
                                  const RunContext& context,
                                  std::optional<RunLock>& lock,
                                  RunHistory& history) {
  try {
    hand_over(lock, options, context.world);
    Run(task, options, context, history).train();
    return std::nullopt;
  } catch (const CommError& error) {
    if (!context.rejoin || !control::may_wait()) throw;
    return error;
  } catch (const StateDiverged&) {
    throw;  // the ranks go on together
  } catch (const std::exception& error) {
    // The other ranks then name this error, and not a rank that has left.
    context.world.abort(lockstep::text_of(error));
    throw;
  }
}

// Goes back to a saved state, since the current state can't be trusted. The
// agent's memory and the disk have only states that were compared. If neither
// has one, the run starts again from the beginning.
void go_back(TrainOptions& options, const ProcessGroup& world,
             const StateDiverged& why) {
  if (world.rank() != 0) return;
  log_warning(
      "train",
      fmt::format(
          "{}; the run goes back to the last state that was equal on all ranks",
          why.why()));
  const bool has_saved = !options.out_dir().empty() &&
                         !list_checkpoints(options.out_dir()).empty();
  if (has_saved) options.checkpoint().resume("auto");
}

}  // namespace

RunReport run_training(Task& task, const TrainOptions& options,
                       const RunContext& context) {
  check_options(options);
  // Installed before the first tensor, so that all tensors are accounted for.
  install_accounting_allocator();
  prepare_outputs(options, context.world);
  std::optional<control::PromiseToWait> promise;
  if (context.rejoin) promise.emplace();
  static std::atomic<int> runs = 0;
  RunHistory history;
  history.identity = identity_of_run(task, context.command, runs++);
  TrainOptions now = options;
  RunContext run_context = context;
  std::optional<RunLock> lock;
  for (;;) {
    std::optional<CommError> lost;
    try {
      lost = run_once(task, now, run_context, lock, history);
    } catch (const StateDiverged& why) {
      go_back(now, run_context.world, why);
      ++history.recordings.report.recoveries;
      continue;
    }
    if (!lost) return history.recordings.report;
    // Frees the memory that was shared with the other ranks.
    run_context.world = ProcessGroup();
    if (!context.rejoin(run_context, now, lockstep::text_of(*lost))) {
      throw CommError(*lost);
    }
    ++history.recordings.report.recoveries;
  }
}

}  // namespace lockstep::training
