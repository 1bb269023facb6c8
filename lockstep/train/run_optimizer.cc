#include "lockstep/train/run_optimizer.h"

#include <typeinfo>
#include <utility>

#include <c10/util/Type.h>
#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/optim/torch_optimizer.h"

namespace lockstep::training {
namespace {

using torch::Tensor;

double factor_at(const Schedule& schedule, const Position& position) {
  return schedule ? schedule(position) : 1.0;
}

class LockstepOptimizer final : public RunOptimizer {
 public:
  LockstepOptimizer(std::unique_ptr<optim::Optimizer> optimizer,
                    Schedule schedule)
      : optimizer_(std::move(optimizer)),
        schedule_(std::move(schedule)),
        first_lr_(optimizer_->lr()) {}

  void set_position(const Position& position) override {
    optimizer_->set_lr(first_lr_ * factor_at(schedule_, position));
  }
  double lr() const override { return optimizer_->lr(); }
  StepResult train_step(Engine& engine, const std::vector<c10::IValue>& inputs,
                        const c10::IValue& target, const ShardLoss& loss,
                        const TrainStepOptions& options) override {
    return engine.train_step(inputs, target, loss, optimizer_.get(), options);
  }
  void step() override { optimizer_->step(); }
  void zero_grad() override { optimizer_->zero_grad(); }
  void place_state(const Engine& engine) override {
    engine.place_state(*optimizer_);
  }
  const std::vector<Tensor>& parameters() const override {
    return optimizer_->parameters();
  }
  int64_t state_bytes() const override { return optimizer_->state_bytes(); }
  OptimizerState state_dict() const override {
    return optimizer_->state_dict();
  }
  void load_state_dict(const OptimizerState& state) override {
    optimizer_->load_state_dict(state);
  }

 private:
  std::unique_ptr<optim::Optimizer> optimizer_;
  Schedule schedule_;
  double first_lr_;
};

// The learning rates of the groups of a LibTorch optimizer.
class TorchRates {
 public:
  TorchRates(torch::optim::Optimizer& optimizer, Schedule schedule,
             TorchSchedule torch_schedule)
      : optimizer_(optimizer),
        schedule_(std::move(schedule)),
        is_per_step_(torch_schedule.is_per_step) {
    for (auto& group : optimizer_.param_groups()) {
      first_lrs_.push_back(group.options().get_lr());
    }
    if (torch_schedule.make) torch_schedule_ = torch_schedule.make(optimizer_);
  }

  void set_position(const Position& position) {
    if (torch_schedule_) {
      const int64_t due = is_per_step_ ? position.step : position.epoch;
      for (; steps_ < due; ++steps_) torch_schedule_->step();
      return;
    }
    const double factor = factor_at(schedule_, position);
    for (size_t g = 0; g < first_lrs_.size(); ++g) {
      optimizer_.param_groups()[g].options().set_lr(first_lrs_[g] * factor);
    }
  }
  double lr() const { return optimizer_.param_groups()[0].options().get_lr(); }

 private:
  torch::optim::Optimizer& optimizer_;
  Schedule schedule_;
  std::shared_ptr<torch::optim::LRScheduler> torch_schedule_;
  bool is_per_step_;
  int64_t steps_ = 0;  // steps of torch_schedule_
  std::vector<double> first_lrs_;
};

// Runs a LibTorch optimizer whose update can be cut into blocks.
class CutTorchOptimizer final : public RunOptimizer {
 public:
  CutTorchOptimizer(std::unique_ptr<torch::optim::Optimizer> optimizer,
                    std::unique_ptr<optim::TorchOptimizer> blocks,
                    TorchRates rates)
      : optimizer_(std::move(optimizer)),
        blocks_(std::move(blocks)),
        rates_(std::move(rates)) {
    blocks_->follow();  // makes the state, so that it can be loaded
  }

  void set_position(const Position& position) override {
    rates_.set_position(position);
  }
  double lr() const override { return rates_.lr(); }
  StepResult train_step(Engine& engine, const std::vector<c10::IValue>& inputs,
                        const c10::IValue& target, const ShardLoss& loss,
                        const TrainStepOptions& options) override {
    blocks_->follow();
    return engine.train_step(inputs, target, loss, blocks_.get(), options);
  }
  void step() override {
    blocks_->follow();
    blocks_->step();
  }
  void zero_grad() override { blocks_->zero_grad(); }
  const std::vector<Tensor>& parameters() const override {
    return blocks_->parameters();
  }
  int64_t state_bytes() const override { return blocks_->state_bytes(); }
  OptimizerState state_dict() const override { return blocks_->state_dict(); }
  void load_state_dict(const OptimizerState& state) override {
    blocks_->load_state_dict(state);
  }

 private:
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::unique_ptr<optim::TorchOptimizer> blocks_;
  TorchRates rates_;
};

// The tensors and the step count of one parameter's state. A tensor that does
// not exist yet, because the parameter had no gradient, is saved as zeros.
// `step` is then 0.
struct StateOfParameter {
  std::vector<std::pair<const char*, Tensor>> tensors;
  int64_t step = 0;
};

StateOfParameter read(const torch::optim::RMSpropParamState& state) {
  return {{{"square_avg", state.square_avg()},
           {"momentum_buffer", state.momentum_buffer()},
           {"grad_avg", state.grad_avg()}},
          state.step()};
}
void write(torch::optim::RMSpropParamState& state,
           const StateOfParameter& values) {
  state.square_avg(values.tensors[0].second);
  state.momentum_buffer(values.tensors[1].second);
  state.grad_avg(values.tensors[2].second);
  state.step(values.step);
}
StateOfParameter read(const torch::optim::AdagradParamState& state) {
  return {{{"sum", state.sum()}}, state.step()};
}
void write(torch::optim::AdagradParamState& state,
           const StateOfParameter& values) {
  state.sum(values.tensors[0].second);
  state.step(values.step);
}

// Runs a LibTorch optimizer that each rank updates as a whole, with its step().
template <class State>
class WholeTorchOptimizer final : public RunOptimizer {
 public:
  WholeTorchOptimizer(std::unique_ptr<torch::optim::Optimizer> optimizer,
                      TorchRates rates)
      : optimizer_(std::move(optimizer)),
        rates_(std::move(rates)),
        parameters_(optim::parameters_of(*optimizer_)) {}

  void set_position(const Position& position) override {
    rates_.set_position(position);
  }
  double lr() const override { return rates_.lr(); }
  StepResult train_step(Engine& engine, const std::vector<c10::IValue>& inputs,
                        const c10::IValue& target, const ShardLoss& loss,
                        const TrainStepOptions& options) override {
    return engine.train_step(inputs, target, loss, *optimizer_, options);
  }
  bool updates_in_blocks() const override { return false; }
  void step() override { optimizer_->step(); }
  void zero_grad() override { optimizer_->zero_grad(); }
  const std::vector<Tensor>& parameters() const override { return parameters_; }
  int64_t state_bytes() const override {
    int64_t bytes = 0;
    for (const auto& [name, tensor] : state_dict()) {
      bytes += static_cast<int64_t>(tensor.nbytes());
    }
    return bytes;
  }

  OptimizerState state_dict() const override {
    OptimizerState all;
    for (size_t p = 0; p < parameters_.size(); ++p) {
      const StateOfParameter state = values_of(p);
      for (const auto& [name, tensor] : state.tensors) {
        all[fmt::format("{}.{}", name, p)] =
            tensor.defined() ? tensor
                             : torch::zeros_like(parameters_[p].detach());
      }
      all[fmt::format("step.{}", p)] = torch::tensor(state.step);
    }
    return all;
  }

  void load_state_dict(const OptimizerState& state) override {
    // Nothing is changed unless all of it fits.
    std::vector<StateOfParameter> loaded;
    for (size_t p = 0; p < parameters_.size(); ++p) {
      StateOfParameter values = values_of(p);
      for (auto& [name, tensor] : values.tensors) {
        Tensor fitting = torch::zeros_like(parameters_[p].detach());
        fitting.copy_(entry(state, name, p, fitting.sizes()));
        tensor = fitting;
      }
      values.step = entry(state, "step", p, {}).template item<int64_t>();
      loaded.push_back(std::move(values));
    }
    for (size_t p = 0; p < parameters_.size(); ++p) {
      auto& known = optimizer_->state()[parameters_[p].unsafeGetTensorImpl()];
      if (loaded[p].step == 0 && !known) continue;
      if (!known) known = std::make_unique<State>();
      write(static_cast<State&>(*known), loaded[p]);
    }
  }

 private:
  StateOfParameter values_of(size_t p) const {
    const auto& states = optimizer_->state();
    const auto found = states.find(parameters_[p].unsafeGetTensorImpl());
    if (found == states.end()) return read(State());
    return read(static_cast<const State&>(*found->second));
  }

  static Tensor entry(const OptimizerState& state, const char* name, size_t p,
                      torch::IntArrayRef sizes) {
    const std::string key = fmt::format("{}.{}", name, p);
    const auto found = state.find(key);
    const bool is_there = found != state.end();
    if (is_there && found->second.sizes() == sizes) return found->second;
    throw CheckpointError(
        {.code = ErrorCode::kStateMismatch,
         .what = fmt::format("the optimizer's state does not fit: '{}'", key),
         .expected = "shape " + c10::str(sizes),
         .got = is_there ? c10::str(found->second.sizes()) : "none",
         .fix = "make the optimizer that the state was saved from"});
  }

  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  TorchRates rates_;
  std::vector<Tensor> parameters_;
};

void check_there(const void* optimizer) {
  if (optimizer != nullptr) return;
  throw InvalidArgument("train", {.code = ErrorCode::kBadOptimizer,
                                  .what = "there is no optimizer",
                                  .expected = "one that the function made",
                                  .got = "a null pointer"});
}

}  // namespace

std::unique_ptr<RunOptimizer> make_run_optimizer(
    std::unique_ptr<optim::Optimizer> optimizer, Schedule schedule) {
  check_there(optimizer.get());
  return std::make_unique<LockstepOptimizer>(std::move(optimizer),
                                             std::move(schedule));
}

std::unique_ptr<RunOptimizer> make_run_optimizer(
    std::unique_ptr<torch::optim::Optimizer> optimizer,
    const optim::StateFactory& make_state, Schedule schedule,
    TorchSchedule torch_schedule) {
  check_there(optimizer.get());
  auto& torch_optimizer = *optimizer;
  TorchRates rates(torch_optimizer, std::move(schedule),
                   std::move(torch_schedule));
  auto blocks = optim::TorchOptimizer::adopt(torch_optimizer, make_state);
  if (blocks) {
    return std::make_unique<CutTorchOptimizer>(
        std::move(optimizer), std::move(blocks), std::move(rates));
  }
  const std::type_info& type = typeid(torch_optimizer);
  if (type == typeid(torch::optim::RMSprop)) {
    using RMSprop = WholeTorchOptimizer<torch::optim::RMSpropParamState>;
    return std::make_unique<RMSprop>(std::move(optimizer), std::move(rates));
  }
  if (type == typeid(torch::optim::Adagrad)) {
    using Adagrad = WholeTorchOptimizer<torch::optim::AdagradParamState>;
    return std::make_unique<Adagrad>(std::move(optimizer), std::move(rates));
  }
  throw InvalidArgument(
      "train", {.code = ErrorCode::kBadOptimizer,
                .what = "the state of this optimizer can't be saved",
                .expected = "SGD, Adam, AdamW, RMSprop or Adagrad of "
                            "torch::optim over dense parameters, or an "
                            "optimizer of lockstep::optim",
                .got = c10::demangle(type.name()),
                .fix = "derive from lockstep::optim::Optimizer"});
}

}  // namespace lockstep::training
