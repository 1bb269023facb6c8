#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>

#include "lockstep/comm/process_group.h"
#include "lockstep/data/batch_source.h"
#include "lockstep/tasks/images/image_task.h"
#include "lockstep/tasks/text/text_task.h"
#include "lockstep/train/train_options.h"
#include "lockstep/train/training_plan.h"

namespace lockstep::report {

/// A run on random samples that is to be measured. It trains an image
/// classifier or a language model.
struct TimedRun {
  training::TrainOptions train{};
  ProcessGroup world{};  ///< ddp: the ranks
  std::variant<tasks::ImageOptions, tasks::TextOptions> task{};
  int64_t steps = 30;  ///< measured steps
  int64_t warmup = 5;  ///< steps before them
  bool fuses = true;   ///< own loops: optim::fuse() replaces torch's step()
  /// Path of a Chrome trace of the last steps, which rank 0 writes. Empty:
  /// none.
  std::string trace{};
};

std::unique_ptr<training::Task> make_task(const TimedRun& run);

/// Returns this rank's part of a random batch.
data::Batch random_batch(const TimedRun& run, const training::Plan& plan);

/// Returns true if the images have the channels-last layout.
bool is_channels_last(const tasks::ImageOptions& images,
                      const training::Plan& plan);

}  // namespace lockstep::report
