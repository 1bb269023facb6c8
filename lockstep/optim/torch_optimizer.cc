#include "lockstep/optim/torch_optimizer.h"

#include <algorithm>
#include <cmath>

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/Type.h>
#include <fmt/format.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/error.h"
#include "lockstep/optim/blocks.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/optim/torch_sgd.h"

namespace lockstep::optim {

using torch::Tensor;

std::vector<Tensor> parameters_of(const torch::optim::Optimizer& optimizer) {
  std::vector<Tensor> parameters;
  for (const auto& group : optimizer.param_groups()) {
    parameters.insert(parameters.end(), group.params().begin(),
                      group.params().end());
  }
  return parameters;
}

namespace {

bool can_be_adopted(const std::vector<Tensor>& parameters) {
  // torch::optim updates a parameter that is listed twice two times in a step.
  return !parameters.empty() &&
         std::all_of(parameters.begin(), parameters.end(),
                     [](const Tensor& each) { return can_be_cut(each); }) &&
         unique(parameters).size() == parameters.size();
}

class TorchSgd final : public TorchOptimizer {
 public:
  TorchSgd(torch::optim::Optimizer& optimizer, const StateFactory& make_state,
           UpdateKernels kernels)
      : TorchOptimizer(optimizer, make_state, kernels) {}

  void follow() override {
    steps_of_group_.clear();
    bool has_momentum = false;
    for (const auto& group : optimizer_.param_groups()) {
      const auto& options =
          static_cast<const torch::optim::SGDOptions&>(group.options());
      steps_of_group_.push_back({.lr = options.lr(),
                                 .momentum = options.momentum(),
                                 .dampening = options.dampening(),
                                 .weight_decay = options.weight_decay(),
                                 .nesterov = options.nesterov()});
      has_momentum = has_momentum || options.momentum() != 0;
    }
    if (!has_momentum && momentum_ == nullptr) return;
    if (momentum_ == nullptr) momentum_ = &add_slot("momentum_buffer");
    for (size_t p = 0; p < parameters_.size(); ++p) {
      // step() of the torch optimizer expects a buffer in all state it finds.
      auto* const state = find_state<State>(p);
      if (state == nullptr || !state->momentum_buffer().defined()) continue;
      state->momentum_buffer(taken(*momentum_, p, state->momentum_buffer()));
    }
  }

  void release_state() override {
    if (momentum_ == nullptr) return;
    for (size_t p = 0; p < parameters_.size(); ++p) {
      auto* const state = find_state<State>(p);
      if (state == nullptr) continue;
      state->momentum_buffer(released(*momentum_, p, state->momentum_buffer()));
    }
  }

  void update_block(size_t block, const Tensor& parameter,
                    const Tensor& gradient) override {
    const size_t p = parameter_of(block);
    SgdStep step = steps_of_group_[group_of(p)];
    step.is_first = is_first_[p];
    const auto update =
        kernels_ == UpdateKernels::kFused ? sgd_update : sgd_update_like_torch;
    update(parameter, gradient,
           step.momentum != 0 ? momentum_->view(block) : Tensor(), step);
  }

  // A parameter without momentum makes its first step.
  std::string options_text() const override {
    std::string text;
    const std::vector<int64_t> buffers = count_buffers();
    for (size_t g = 0; g < steps_of_group_.size(); ++g) {
      const SgdStep& step = steps_of_group_[g];
      text += fmt::format(
          "group {}: SGD, lr {}, momentum {}, dampening {}, weight_decay {}, "
          "nesterov {}, {} of its parameters had a step with momentum\n",
          g, step.lr, step.momentum, step.dampening, step.weight_decay,
          step.nesterov, buffers[g]);
    }
    return text;
  }

  std::map<std::string, Tensor> state_dict() const override {
    std::map<std::string, Tensor> state = Optimizer::state_dict();
    if (momentum_ != nullptr) state["has_momentum_buffer.0"] = has_buffer();
    return state;
  }
  void load_state_dict(const std::map<std::string, Tensor>& state) override {
    if (momentum_ == nullptr) return;
    const Tensor& has_buffer =
        checked_entry(state, "has_momentum_buffer.0",
                      {static_cast<int64_t>(parameters_.size())}, torch::kByte);
    Optimizer::load_state_dict(state);
    for (size_t p = 0; p < parameters_.size(); ++p) {
      if (has_buffer[static_cast<int64_t>(p)].item<bool>()) {
        state_of<State>(p).momentum_buffer(momentum_->tensor(p));
      } else {
        optimizer_.state().erase(parameters_[p].unsafeGetTensorImpl());
      }
    }
  }

 private:
  using State = torch::optim::SGDParamState;

  /// Returns the number of parameters with a momentum buffer, by group.
  std::vector<int64_t> count_buffers() const {
    std::vector<int64_t> counts(steps_of_group_.size());
    for (size_t p = 0; p < parameters_.size(); ++p) {
      const auto* const state = find_state<State>(p);
      if (state != nullptr && state->momentum_buffer().defined()) {
        ++counts[group_of(p)];
      }
    }
    return counts;
  }

  // Returns whether each parameter has a momentum buffer. With dampening, a
  // first step differs from a step that starts from zeros.
  Tensor has_buffer() const {
    Tensor has_buffer =
        torch::zeros({static_cast<int64_t>(parameters_.size())}, torch::kByte);
    for (size_t p = 0; p < parameters_.size(); ++p) {
      const auto* const state = find_state<State>(p);
      if (state != nullptr && state->momentum_buffer().defined()) {
        has_buffer[static_cast<int64_t>(p)] = 1;
      }
    }
    return has_buffer;
  }

  void count_step(const std::vector<bool>& has_gradient) override {
    is_first_.assign(parameters_.size(), false);
    for (size_t p = 0; p < parameters_.size(); ++p) {
      if (!has_gradient[p] || steps_of_group_[group_of(p)].momentum == 0) {
        continue;
      }
      State& state = state_of<State>(p);
      if (state.momentum_buffer().defined()) continue;
      is_first_[p] = true;
      state.momentum_buffer(momentum_->tensor(p));
    }
  }

  std::vector<SgdStep> steps_of_group_;
  Slot* momentum_ = nullptr;    // null: no group had momentum so far
  std::vector<bool> is_first_;  // by parameter: first step with momentum
};

/// Adam and AdamW. Their options and states have the same members.
template <typename Options, typename State, bool kIsDecoupled>
class TorchAdam final : public TorchOptimizer {
 public:
  TorchAdam(torch::optim::Optimizer& optimizer, const StateFactory& make_state,
            UpdateKernels kernels)
      : TorchOptimizer(optimizer, make_state, kernels),
        exp_avg_(add_slot("exp_avg")),
        exp_avg_sq_(add_slot("exp_avg_sq")) {
    add_step_counts();
  }

  void follow() override {
    options_.clear();
    bool has_amsgrad = false;
    for (const auto& group : optimizer_.param_groups()) {
      options_.push_back(static_cast<const Options&>(group.options()));
      has_amsgrad = has_amsgrad || options_.back().amsgrad();
    }
    if (has_amsgrad && max_exp_avg_sq_ == nullptr) {
      max_exp_avg_sq_ = &add_slot("max_exp_avg_sq");
    }
    for (size_t p = 0; p < parameters_.size(); ++p) {
      State& state = state_of<State>(p);
      state.exp_avg(taken(exp_avg_, p, state.exp_avg()));
      state.exp_avg_sq(taken(exp_avg_sq_, p, state.exp_avg_sq()));
      if (!options_[group_of(p)].amsgrad()) continue;
      state.max_exp_avg_sq(taken(*max_exp_avg_sq_, p, state.max_exp_avg_sq()));
    }
  }

  void release_state() override {
    for (size_t p = 0; p < parameters_.size(); ++p) {
      // step() of the torch optimizer expects tensors in all state it finds.
      State* const state = find_state<State>(p);
      if (state == nullptr) continue;
      state->exp_avg(released(exp_avg_, p, state->exp_avg()));
      state->exp_avg_sq(released(exp_avg_sq_, p, state->exp_avg_sq()));
      if (max_exp_avg_sq_ == nullptr) continue;
      state->max_exp_avg_sq(
          released(*max_exp_avg_sq_, p, state->max_exp_avg_sq()));
    }
  }

  void update_block(size_t block, const Tensor& parameter,
                    const Tensor& gradient) override {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const Options& options = options_[group_of(parameter_of(block))];
    if (kernels_ == UpdateKernels::kTorch) {
      return update_like_torch(block, parameter, gradient, options);
    }
    const auto [beta1, beta2] = options.betas();
    const at::TensorList maxima =
        options.amsgrad() ? at::TensorList(max_exp_avg_sq_->view(block))
                          : at::TensorList();
    const auto kernel = kIsDecoupled ? static_cast<Kernel>(&at::_fused_adamw_)
                                     : static_cast<Kernel>(&at::_fused_adam_);
    kernel(parameter, gradient, exp_avg_.view(block), exp_avg_sq_.view(block),
           maxima, step_count_of(block), options.lr(), beta1, beta2,
           options.weight_decay(), options.eps(), options.amsgrad(),
           /*maximize=*/false, {}, {});
  }

  std::string options_text() const override {
    std::string text;
    for (size_t g = 0; g < options_.size(); ++g) {
      const Options& options = options_[g];
      const auto [beta1, beta2] = options.betas();
      text += fmt::format(
          "group {}: {}, lr {}, betas {}, {}, eps {}, weight_decay {}, amsgrad "
          "{}\n",
          g, kIsDecoupled ? "AdamW" : "Adam", options.lr(), beta1, beta2,
          options.eps(), options.weight_decay(), options.amsgrad());
    }
    return text;
  }

  void load_state_dict(const std::map<std::string, Tensor>& state) override {
    Optimizer::load_state_dict(state);
    for (size_t p = 0; p < parameters_.size(); ++p) {
      state_of<State>(p).step(step_counts_[p].template item<int64_t>());
    }
  }

 private:
  using Kernel = void (*)(at::TensorList, at::TensorList, at::TensorList,
                          at::TensorList, at::TensorList, at::TensorList,
                          double, double, double, double, double, bool, bool,
                          const std::optional<Tensor>&,
                          const std::optional<Tensor>&);

  /// Updates a block with the operators of torch::optim::Adam::step() or of
  /// AdamW's, in their order.
  void update_like_torch(size_t block, const Tensor& parameter, Tensor gradient,
                         const Options& options) {
    const auto [beta1, beta2] = options.betas();
    const int64_t step = find_state<State>(parameter_of(block))->step();
    const double bias_correction1 = 1 - std::pow(beta1, step);
    const double bias_correction2 = 1 - std::pow(beta2, step);
    if (options.weight_decay() != 0) {
      if (kIsDecoupled) {
        parameter.mul_(1 - options.lr() * options.weight_decay());
      } else {
        gradient = gradient.add(parameter, options.weight_decay());
      }
    }
    const Tensor& exp_avg = exp_avg_.view(block);
    const Tensor& exp_avg_sq = exp_avg_sq_.view(block);
    exp_avg.mul_(beta1).add_(gradient, 1 - beta1);
    exp_avg_sq.mul_(beta2).addcmul_(gradient, gradient, 1 - beta2);
    Tensor denominator;
    if (options.amsgrad()) {
      Tensor maximum = max_exp_avg_sq_->view(block);
      at::max_out(maximum, exp_avg_sq, maximum);
      denominator = maximum.sqrt();
    } else {
      denominator = exp_avg_sq.sqrt();
    }
    denominator.div_(std::sqrt(bias_correction2)).add_(options.eps());
    parameter.addcdiv_(exp_avg, denominator,
                       -(options.lr() / bias_correction1));
  }

  void count_step(const std::vector<bool>& has_gradient) override {
    const torch::NoGradGuard no_grad;
    for (size_t p = 0; p < parameters_.size(); ++p) {
      if (!has_gradient[p]) continue;
      State& state = state_of<State>(p);
      state.step(state.step() + 1);
      step_counts_[p].fill_(state.step());
    }
  }

  std::vector<Options> options_;  // by group
  Slot& exp_avg_;
  Slot& exp_avg_sq_;
  Slot* max_exp_avg_sq_ = nullptr;  // null: no group had amsgrad so far
};

/// Returns null for an optimizer of another type.
std::unique_ptr<TorchOptimizer> make_of_type(torch::optim::Optimizer& optimizer,
                                             const StateFactory& make_state,
                                             UpdateKernels kernels) {
  const std::type_info& type = typeid(optimizer);
  if (type == typeid(torch::optim::SGD)) {
    return std::make_unique<TorchSgd>(optimizer, make_state, kernels);
  }
  if (type == typeid(torch::optim::Adam)) {
    using Adam = TorchAdam<torch::optim::AdamOptions,
                           torch::optim::AdamParamState, false>;
    return std::make_unique<Adam>(optimizer, make_state, kernels);
  }
  if (type == typeid(torch::optim::AdamW)) {
    using AdamW = TorchAdam<torch::optim::AdamWOptions,
                            torch::optim::AdamWParamState, true>;
    return std::make_unique<AdamW>(optimizer, make_state, kernels);
  }
  return nullptr;
}

}  // namespace

std::unique_ptr<TorchOptimizer> TorchOptimizer::adopt(
    torch::optim::Optimizer& optimizer, const StateFactory& make_state) {
  if (!can_be_adopted(parameters_of(optimizer))) return nullptr;
  return make_of_type(optimizer, make_state, UpdateKernels::kFused);
}

std::unique_ptr<TorchOptimizer> TorchOptimizer::make_like_torch(
    torch::optim::Optimizer& optimizer) {
  check_type(optimizer);
  const auto make_state = [](const Tensor& parameter) {
    return torch::zeros_like(parameter.detach());
  };
  return make_of_type(optimizer, make_state, UpdateKernels::kTorch);
}

void TorchOptimizer::check_type(const torch::optim::Optimizer& optimizer) {
  const std::type_info& type = typeid(optimizer);
  if (type == typeid(torch::optim::SGD) || type == typeid(torch::optim::Adam) ||
      type == typeid(torch::optim::AdamW)) {
    return;
  }
  throw InvalidArgument(
      "optim", {.code = ErrorCode::kBadOptimizer,
                .what = "the update of this optimizer can't be divided between "
                        "threads",
                .expected = "torch::optim::SGD, Adam or AdamW, and not a class "
                            "that derives from them",
                .got = c10::demangle(type.name()),
                .fix = "call the optimizer's own step()"});
}

TorchOptimizer::TorchOptimizer(torch::optim::Optimizer& optimizer,
                               const StateFactory& make_state,
                               UpdateKernels kernels)
    : Optimizer(parameters_of(optimizer), 0),
      optimizer_(optimizer),
      kernels_(kernels),
      type_(typeid(optimizer)),
      make_state_(make_state) {
  for (size_t g = 0; g < optimizer.param_groups().size(); ++g) {
    group_of_.resize(
        group_of_.size() + optimizer.param_groups()[g].params().size(), g);
  }
}

Slot& TorchOptimizer::add_slot(std::string name) {
  Slot& slot = Optimizer::add_slot(std::move(name), make_state_);
  allocate_state();
  return slot;
}

bool TorchOptimizer::is_for(const torch::optim::Optimizer& optimizer) const {
  if (&optimizer != &optimizer_ || typeid(optimizer) != type_) return false;
  size_t p = 0;
  for (size_t g = 0; g < optimizer.param_groups().size(); ++g) {
    for (const Tensor& parameter : optimizer.param_groups()[g].params()) {
      if (p == parameters_.size() || !parameters_[p].is_same(parameter) ||
          group_of_[p++] != g) {
        return false;
      }
    }
  }
  return p == parameters_.size();
}

Tensor TorchOptimizer::taken(const Slot& slot, size_t p, const Tensor& state) {
  Tensor tensor = slot.tensor(p);
  if (state.is_same(tensor)) return tensor;
  note_loaded(slot, p, state);
  const torch::NoGradGuard no_grad;
  return state.defined() ? tensor.copy_(state) : tensor.zero_();
}

Tensor TorchOptimizer::released(const Slot& slot, size_t p,
                                const Tensor& state) {
  if (!state.defined() || !state.is_same(slot.tensor(p))) return state;
  return state.clone();
}

template <typename State>
State& TorchOptimizer::state_of(size_t p) const {
  auto& state = optimizer_.state()[parameters_[p].unsafeGetTensorImpl()];
  if (!state) state = std::make_unique<State>();
  return static_cast<State&>(*state);
}

template <typename State>
State* TorchOptimizer::find_state(size_t p) const {
  const auto found =
      optimizer_.state().find(parameters_[p].unsafeGetTensorImpl());
  if (found == optimizer_.state().end()) return nullptr;
  return static_cast<State*>(found->second.get());
}

}  // namespace lockstep::optim
