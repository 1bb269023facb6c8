#include "lockstep/optim/update_rule.h"

#include <cmath>
#include <optional>
#include <typeinfo>
#include <vector>

#include <ATen/core/LegacyTypeDispatch.h>
#include <fmt/format.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "lockstep/optim/sgd_kernels.h"

namespace lockstep::optim {
namespace {

using torch::Tensor;

class SgdRule final : public UpdateRule {
 public:
  explicit SgdRule(Kernels kernels) : kernels_(kernels) {}

  void read(const torch::optim::Optimizer& optimizer) override {
    steps_of_group_.clear();
    for (const auto& group : optimizer.param_groups()) {
      const auto& options =
          static_cast<const torch::optim::SGDOptions&>(group.options());
      steps_of_group_.push_back({.lr = options.lr(),
                                 .momentum = options.momentum(),
                                 .dampening = options.dampening(),
                                 .weight_decay = options.weight_decay(),
                                 .nesterov = options.nesterov()});
    }
  }

  void update(const BlockUpdate& block) const override {
    SgdStep step = steps_of_group_[block.group];
    step.is_first = block.is_first;
    const auto kernel =
        kernels_ == Kernels::kFused ? sgd_update : sgd_update_like_torch;
    kernel(block.parameter, block.gradient,
           step.momentum != 0 ? *block.state[0] : Tensor(), step);
  }

  bool uses_state(size_t group) const override {
    return steps_of_group_[group].momentum != 0;
  }

  std::string options_text(size_t group) const override {
    const SgdStep& step = steps_of_group_[group];
    return fmt::format(
        "SGD, lr {}, momentum {}, dampening {}, weight_decay {}, nesterov {}",
        step.lr, step.momentum, step.dampening, step.weight_decay,
        step.nesterov);
  }

 private:
  Kernels kernels_;
  std::vector<SgdStep> steps_of_group_;
};

/// Adam and AdamW. Their options have the same members.
template <typename Options, bool kIsDecoupled>
class AdamRule final : public UpdateRule {
 public:
  explicit AdamRule(Kernels kernels) : kernels_(kernels) {}

  void read(const torch::optim::Optimizer& optimizer) override {
    options_.clear();
    for (const auto& group : optimizer.param_groups()) {
      options_.push_back(static_cast<const Options&>(group.options()));
    }
  }

  void update(const BlockUpdate& block) const override {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const Options& options = options_[block.group];
    if (kernels_ == Kernels::kLikeTorch) {
      return update_like_torch(block, options);
    }
    const auto [beta1, beta2] = options.betas();
    const at::TensorList maxima =
        options.amsgrad() ? at::TensorList(*block.state[2]) : at::TensorList();
    const auto kernel = kIsDecoupled ? static_cast<Kernel>(&at::_fused_adamw_)
                                     : static_cast<Kernel>(&at::_fused_adam_);
    kernel(block.parameter, block.gradient, *block.state[0], *block.state[1],
           maxima, block.step_count, options.lr(), beta1, beta2,
           options.weight_decay(), options.eps(), options.amsgrad(),
           /*maximize=*/false, {}, {});
  }

  bool uses_state(size_t) const override { return true; }

  std::string options_text(size_t group) const override {
    const Options& options = options_[group];
    const auto [beta1, beta2] = options.betas();
    return fmt::format(
        "{}, lr {}, betas {}, {}, eps {}, weight_decay {}, amsgrad {}",
        kIsDecoupled ? "AdamW" : "Adam", options.lr(), beta1, beta2,
        options.eps(), options.weight_decay(), options.amsgrad());
  }

 private:
  using Kernel = void (*)(at::TensorList, at::TensorList, at::TensorList,
                          at::TensorList, at::TensorList, at::TensorList,
                          double, double, double, double, double, bool, bool,
                          const std::optional<Tensor>&,
                          const std::optional<Tensor>&);

  /// Updates a block with the operators of torch::optim::Adam::step() or of
  /// AdamW's, in their order.
  static void update_like_torch(const BlockUpdate& block,
                                const Options& options) {
    const Tensor& parameter = block.parameter;
    Tensor gradient = block.gradient;
    const auto [beta1, beta2] = options.betas();
    const double bias_correction1 = 1 - std::pow(beta1, block.step);
    const double bias_correction2 = 1 - std::pow(beta2, block.step);
    if (options.weight_decay() != 0) {
      if (kIsDecoupled) {
        parameter.mul_(1 - options.lr() * options.weight_decay());
      } else {
        gradient = gradient.add(parameter, options.weight_decay());
      }
    }
    const Tensor& exp_avg = *block.state[0];
    const Tensor& exp_avg_sq = *block.state[1];
    exp_avg.mul_(beta1).add_(gradient, 1 - beta1);
    exp_avg_sq.mul_(beta2).addcmul_(gradient, gradient, 1 - beta2);
    Tensor denominator;
    if (options.amsgrad()) {
      Tensor maximum = *block.state[2];
      at::max_out(maximum, exp_avg_sq, maximum);
      denominator = maximum.sqrt();
    } else {
      denominator = exp_avg_sq.sqrt();
    }
    denominator.div_(std::sqrt(bias_correction2)).add_(options.eps());
    parameter.addcdiv_(exp_avg, denominator,
                       -(options.lr() / bias_correction1));
  }

  Kernels kernels_;
  std::vector<Options> options_;  // by group
};

}  // namespace

std::unique_ptr<UpdateRule> make_update_rule(
    const torch::optim::Optimizer& optimizer, Kernels kernels) {
  const std::type_info& type = typeid(optimizer);
  if (type == typeid(torch::optim::SGD)) {
    return std::make_unique<SgdRule>(kernels);
  }
  if (type == typeid(torch::optim::Adam)) {
    using Adam = AdamRule<torch::optim::AdamOptions, false>;
    return std::make_unique<Adam>(kernels);
  }
  if (type == typeid(torch::optim::AdamW)) {
    using AdamW = AdamRule<torch::optim::AdamWOptions, true>;
    return std::make_unique<AdamW>(kernels);
  }
  return nullptr;
}

}  // namespace lockstep::optim
