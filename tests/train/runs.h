#pragma once

#include <functional>
#include <string>

#include "lockstep/comm/process_group.h"
#include "lockstep/tasks/images/image_task.h"
#include "lockstep/train/run/run_training.h"
#include "tests/train/report_of_ranks.h"
#include "tests/train/short_runs.h"

// Runs of an instant, for tests of the trainer.
namespace lockstep::training {

/// The options of a run that trains a classifier of images, and its ranks.
struct ImageTraining : TrainOptions, tasks::ImageOptions {
  ProcessGroup world;
};

using Stop = std::function<int()>;

inline RunReport run_training(const ImageTraining& options,
                              const Stop& stop = {}) {
  tasks::ImageTask task(options);
  return run_training(task, options, {.world = options.world, .stop = stop});
}

/// A small mlp on a few synthetic images: 2 epochs of 4 batches of 30, of
/// which the last has 10. 30 is uneven over the 4 shards. The same bits on 1, 2
/// and 4 workers.
inline ImageTraining sharded_run() {
  ImageTraining options;
  static_cast<TrainOptions&>(options) =
      short_run(/*batch_size=*/30, /*shards=*/4);
  options.model = {.name = "mlp", .width = 32, .depth = 2};
  options.data = {.name = "synthetic", .samples = 100};
  options.epochs(2);
  options.optimizer.lr = 0.01;
  options.seed(3);
  options.evaluation().enabled(true);
  return options;
}

/// Rank 0's report of a run with ranks as threads, each of which makes `run` of
/// its options.
inline RunReport distributed_by(
    ImageTraining options, int ranks, const std::string& backend,
    const std::function<RunReport(const ImageTraining&)>& run) {
  options.strategy(Strategy::kDistributed);
  options.devices().resize(static_cast<size_t>(ranks), options.devices()[0]);
  return report_of_ranks(ranks, backend, [&](const ProcessGroup& world) {
    ImageTraining own = options;
    own.world = world;
    return run(own);
  });
}

/// The same of run_training(); `stop` is rank 0's.
inline RunReport distributed(const ImageTraining& options, int ranks,
                             const std::string& backend,
                             const Stop& stop = {}) {
  return distributed_by(
      options, ranks, backend, [&stop](const ImageTraining& own) {
        return run_training(own, own.world.rank() == 0 ? stop : Stop());
      });
}

}  // namespace lockstep::training
