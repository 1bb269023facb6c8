#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/optim.h>
#include <torch/types.h>

#include "lockstep/checkpoint/saved_state.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/parallel/engine.h"

namespace lockstep::train {

/// Where a run is, as the schedules see it.
struct Position {
  int64_t step = 0;   ///< counted from 0
  int64_t epoch = 0;  ///< counted from 0
  int64_t total_steps = 1;
};

/// The learning rates of a step are those that the optimizer was made with,
/// times this.
using Schedule = std::function<double(const Position&)>;

/// A schedule of LibTorch's for `optimizer`, whose step() is called after each
/// epoch, or after each step. A run that goes on makes it anew and calls
/// step() as often as it was called.
struct TorchSchedule {
  std::function<std::shared_ptr<torch::optim::LRScheduler>(
      torch::optim::Optimizer& optimizer)>
      make;
  bool is_per_step = false;
};

/// The optimizer of a run, whoever made it, and its learning rate.
class RunOptimizer {
 public:
  virtual ~RunOptimizer() = default;

  /// Before each step: sets the learning rates.
  virtual void set_position(const Position& position) = 0;
  /// Of the first parameter group.
  virtual double lr() const = 0;

  virtual StepResult train_step(Engine& engine,
                                const std::vector<c10::IValue>& inputs,
                                const c10::IValue& target,
                                const ShardLoss& loss,
                                const TrainStepOptions& options) = 0;
  /// Whether train_step() makes the update as it goes. Otherwise options that
  /// need an optimizer have no effect on it.
  virtual bool updates_in_blocks() const { return true; }
  /// One update from the parameters' .grad.
  virtual void step() = 0;
  virtual void zero_grad() = 0;

  virtual const std::vector<torch::Tensor>& parameters() const = 0;
  virtual int64_t state_bytes() const = 0;
  /// By name, "<what>.<parameter>"; has the same names at every step.
  virtual OptimizerState state_dict() const = 0;
  /// Throws CheckpointError for missing or misshapen entries.
  virtual void load_state_dict(const OptimizerState& state) = 0;
};

/// Of Lockstep's optimizers.
std::unique_ptr<RunOptimizer> make_run_optimizer(
    std::unique_ptr<optim::Optimizer> optimizer, Schedule schedule = {});

/// Of LibTorch's: SGD, Adam and AdamW, whose state `make_state` makes, RMSprop
/// and Adagrad. Throws InvalidArgument for another class: its state can't be
/// saved.
std::unique_ptr<RunOptimizer> make_run_optimizer(
    std::unique_ptr<torch::optim::Optimizer> optimizer,
    const optim::StateFactory& make_state, Schedule schedule = {},
    TorchSchedule torch_schedule = {});

}  // namespace lockstep::train
