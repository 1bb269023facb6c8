#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/optim/block_optimizer.h"
#include "lockstep/parallel/engine.h"
#include "lockstep/train/schedule.h"

namespace lockstep::training {

/// The optimizer of a run, and its learning rates.
class RunOptimizer {
 public:
  /// `optimizer` is an SGD, Adam or AdamW of torch::optim, for whose state
  /// `make_state` provides memory, or an RMSprop or Adagrad. Throws
  /// InvalidArgument for another class, because its state can't be saved.
  RunOptimizer(
      std::unique_ptr<torch::optim::Optimizer> optimizer,
      const optim::StateFactory& make_state, Schedule schedule = {},
      const TorchSchedule& torch_schedule = {},
      optim::FirstMomentum first_momentum = optim::FirstMomentum::kGradient);

  /// Sets the learning rates. Called before each step.
  void set_position(const Position& position);
  /// Returns the learning rate of the first parameter group.
  double lr() const { return optimizer_->param_groups()[0].options().get_lr(); }

  StepResult train_step(Engine& engine, const std::vector<c10::IValue>& inputs,
                        const c10::IValue& target, const ShardLoss& loss,
                        const TrainStepOptions& options);
  /// Returns true if train_step() makes the update block by block. Otherwise,
  /// options that need an optimizer have no effect on it.
  bool updates_in_blocks() const { return blocks_ != nullptr; }
  /// Makes one update from the parameters' .grad.
  void step();
  void zero_grad() { optimizer_->zero_grad(); }

  /// Makes the state, divided between the engine's devices if that is possible.
  /// Collective.
  void place_state(const Engine& engine);
  const std::vector<torch::Tensor>& parameters() const { return parameters_; }
  int64_t state_bytes() const { return optim::state_bytes(*optimizer_); }
  /// Returns the state by name, "<what>.<parameter>". The names are the same at
  /// every step.
  OptimizerState state_dict() const;
  /// Throws CheckpointError for entries that are missing or have another shape.
  void load_state_dict(const OptimizerState& state);

 private:
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::vector<torch::Tensor> parameters_;
  std::unique_ptr<optim::BlockOptimizer> blocks_;  // null: it can't be cut
  Schedule schedule_;
  std::shared_ptr<torch::optim::LRScheduler> torch_schedule_;
  bool is_per_step_;
  int64_t schedule_steps_ = 0;     // of torch_schedule_
  std::vector<double> first_lrs_;  // by group
};

}  // namespace lockstep::training
