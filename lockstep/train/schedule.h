#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>

namespace lockstep::training {

/// The position of a run, as the schedules see it.
struct Position {
  int64_t step = 0;   ///< counted from 0
  int64_t epoch = 0;  ///< counted from 0
  int64_t total_steps = 1;
};

/// A function that returns the factor for the learning rates of a step. It
/// multiplies the learning rates that the optimizer was made with.
using Schedule = std::function<double(const Position&)>;

/// A LibTorch schedule for `optimizer`. Its step() is called after each epoch,
/// or after each step. A resumed run makes a new one and calls step() as often
/// as it had been called.
struct TorchSchedule {
  std::function<std::shared_ptr<torch::optim::LRScheduler>(
      torch::optim::Optimizer& optimizer)>
      make;
  bool is_per_step = false;
};

}  // namespace lockstep::training
