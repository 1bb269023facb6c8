#include "lockstep/train/run_optimizer.h"

#include <utility>

#include "lockstep/base/error.h"

namespace lockstep::training {
namespace {

std::unique_ptr<torch::optim::Optimizer> checked(
    std::unique_ptr<torch::optim::Optimizer> optimizer) {
  if (!optimizer) {
    throw InvalidArgument("train", {.code = ErrorCode::kBadOptimizer,
                                    .what = "there is no optimizer",
                                    .expected = "one that the function made",
                                    .got = "a null pointer"});
  }
  optim::state_names(*optimizer);  // throws if it can't be saved
  return optimizer;
}

}  // namespace

RunOptimizer::RunOptimizer(std::unique_ptr<torch::optim::Optimizer> optimizer,
                           const optim::StateFactory& make_state,
                           Schedule schedule,
                           const TorchSchedule& torch_schedule,
                           optim::FirstMomentum first_momentum)
    : optimizer_(checked(std::move(optimizer))),
      parameters_(optim::parameters_of(*optimizer_)),
      schedule_(std::move(schedule)),
      is_per_step_(torch_schedule.is_per_step) {
  if (optim::BlockOptimizer::serves(*optimizer_)) {
    blocks_ = std::make_unique<optim::BlockOptimizer>(
        *optimizer_, make_state, optim::Kernels::kFused, first_momentum);
  }
  for (auto& group : optimizer_->param_groups()) {
    first_lrs_.push_back(group.options().get_lr());
  }
  if (torch_schedule.make) torch_schedule_ = torch_schedule.make(*optimizer_);
}

void RunOptimizer::set_position(const Position& position) {
  if (torch_schedule_) {
    const int64_t due = is_per_step_ ? position.step : position.epoch;
    for (; schedule_steps_ < due; ++schedule_steps_) torch_schedule_->step();
    return;
  }
  const double factor = schedule_ ? schedule_(position) : 1.0;
  for (size_t g = 0; g < first_lrs_.size(); ++g) {
    optimizer_->param_groups()[g].options().set_lr(first_lrs_[g] * factor);
  }
}

StepResult RunOptimizer::train_step(Engine& engine,
                                    const std::vector<c10::IValue>& inputs,
                                    const c10::IValue& target,
                                    const ShardLoss& loss,
                                    const TrainStepOptions& options) {
  StepOptimizer optimizer{.whole = optimizer_.get()};
  if (blocks_) {
    blocks_->follow();
    optimizer = {.blocks = blocks_.get()};
  }
  return engine.train_step(inputs, target, loss, optimizer, options);
}

void RunOptimizer::step() {
  if (!blocks_) {
    optimizer_->step();
    return;
  }
  blocks_->follow();
  blocks_->step();
}

void RunOptimizer::place_state(const Engine& engine) {
  if (!blocks_) return;
  // Before the state is made, or one device would need room for all of it.
  engine.place_state(*blocks_);
  blocks_->follow();
}

OptimizerState RunOptimizer::state_dict() const {
  return blocks_ ? blocks_->state_dict() : optim::state_dict(*optimizer_);
}

void RunOptimizer::load_state_dict(const OptimizerState& state) {
  if (blocks_) {
    blocks_->load_state_dict(state);
  } else {
    optim::load_state_dict(*optimizer_, state);
  }
}

}  // namespace lockstep::training
