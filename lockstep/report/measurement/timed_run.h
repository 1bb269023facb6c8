#pragma once

#include <memory>
#include <variant>

#include "lockstep/data/batch.h"
#include "lockstep/tasks/images/image_task.h"
#include "lockstep/tasks/text/text_task.h"
#include "lockstep/train/options.h"
#include "lockstep/train/plan.h"

namespace lockstep::report {

/// A run on random samples, to be measured: of a classifier of images or of a
/// language model.
struct TimedRun {
  train::TrainOptions train;
  std::variant<tasks::ImageOptions, tasks::TextOptions> task;
};

std::unique_ptr<train::Task> make_task(const TimedRun& run);

/// The part of a batch that is this rank's.
data::Batch random_batch(const TimedRun& run, const train::Plan& plan);

/// The layout that the images have.
bool is_channels_last(const tasks::ImageOptions& images,
                      const train::Plan& plan);

}  // namespace lockstep::report
