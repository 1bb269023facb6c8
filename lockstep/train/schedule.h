#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/train/options.h"

namespace lockstep::train {

/// Where a run is, as the schedules see it.
struct Position {
  int64_t step = 0;  ///< counted from 0
  int64_t epoch = 0;
  int64_t total_steps = 1;
};

/// The learning rate of a step. kSteps: lr x 0.1 for each milestone that the
/// epoch has reached. kCosine: lr x (step + 1) / warmup, then half a cosine
/// down to 0 at total_steps (torch's CosineAnnealingLR, eta_min 0). Warm-up
/// holds for every kind.
double learning_rate(const TrainOptions& options, const Position& position);

}  // namespace lockstep::train
