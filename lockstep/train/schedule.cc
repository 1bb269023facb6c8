#include "lockstep/train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace lockstep::train {
namespace {

double scheduled(const TrainOptions& options, const Position& position) {
  switch (options.schedule) {
    case ScheduleKind::kConstant:
      return options.lr;
    case ScheduleKind::kSteps: {
      const auto reached =
          std::count_if(options.milestones.begin(), options.milestones.end(),
                        [&](int64_t epoch) { return epoch <= position.epoch; });
      return options.lr * std::pow(0.1, static_cast<double>(reached));
    }
    case ScheduleKind::kCosine: {
      const int64_t steps =
          std::max<int64_t>(1, position.total_steps - options.warmup_steps);
      const int64_t step =
          std::clamp<int64_t>(position.step - options.warmup_steps, 0, steps);
      const double part =
          static_cast<double>(step) / static_cast<double>(steps);
      return options.lr * 0.5 * (1 + std::cos(std::numbers::pi * part));
    }
  }
  return options.lr;
}

}  // namespace

double learning_rate(const TrainOptions& options, const Position& position) {
  const double lr = scheduled(options, position);
  if (position.step >= options.warmup_steps) return lr;
  return lr * static_cast<double>(position.step + 1) /
         static_cast<double>(options.warmup_steps);
}

}  // namespace lockstep::train
