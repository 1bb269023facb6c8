#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/optim.h>
#include <torch/types.h>

#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/parallel/engine.h"
#include "lockstep/train/schedule.h"

namespace lockstep::training {

/// Interface to the optimizer of a run, of whatever kind, and its learning
/// rate.
class RunOptimizer {
 public:
  virtual ~RunOptimizer() = default;

  /// Sets the learning rates. Called before each step.
  virtual void set_position(const Position& position) = 0;
  /// Returns the learning rate of the first parameter group.
  virtual double lr() const = 0;

  virtual StepResult train_step(Engine& engine,
                                const std::vector<c10::IValue>& inputs,
                                const c10::IValue& target,
                                const ShardLoss& loss,
                                const TrainStepOptions& options) = 0;
  /// Returns true if train_step() makes the update block by block. Otherwise,
  /// options that need an optimizer have no effect on it.
  virtual bool updates_in_blocks() const { return true; }
  /// Makes one update from the parameters' .grad.
  virtual void step() = 0;
  virtual void zero_grad() = 0;

  /// Divides the state between the engine's devices, as the first step would.
  /// Does nothing if the optimizer can't do that.
  virtual void place_state(const Engine& /*engine*/) {}
  virtual const std::vector<torch::Tensor>& parameters() const = 0;
  virtual int64_t state_bytes() const = 0;
  /// Returns the state by name, "<what>.<parameter>". The names are the same at
  /// every step.
  virtual OptimizerState state_dict() const = 0;
  /// Throws CheckpointError for entries that are missing or have another shape.
  virtual void load_state_dict(const OptimizerState& state) = 0;
};

/// Wraps an optimizer of Lockstep.
std::unique_ptr<RunOptimizer> make_run_optimizer(
    std::unique_ptr<optim::Optimizer> optimizer, Schedule schedule = {});

/// Wraps an optimizer of LibTorch: SGD, Adam and AdamW, for whose state
/// `make_state` provides memory, RMSprop and Adagrad. Throws InvalidArgument
/// for another class, because its state can't be saved.
std::unique_ptr<RunOptimizer> make_run_optimizer(
    std::unique_ptr<torch::optim::Optimizer> optimizer,
    const optim::StateFactory& make_state, Schedule schedule = {},
    TorchSchedule torch_schedule = {});

}  // namespace lockstep::training
