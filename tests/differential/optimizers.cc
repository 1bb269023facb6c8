#include "tests/differential/optimizers.h"

#include <sstream>
#include <stdexcept>

#include <torch/serialize.h>

namespace lockstep::differential {

using torch::Tensor;

namespace {

// So that AdamW does not divide rounding errors by rounding errors.
constexpr double kEpsilon = 1e-3;

std::unique_ptr<torch::optim::Optimizer> make_torch(
    const OptimizerSpec& spec, const std::vector<Tensor>& parameters) {
  namespace to = torch::optim;
  if (spec.kind == "adamw") {
    return std::make_unique<to::AdamW>(
        parameters, to::AdamWOptions(spec.rate).eps(kEpsilon).weight_decay(
                        spec.weight_decay));
  }
  if (spec.kind == "adam") {
    return std::make_unique<to::Adam>(
        parameters, to::AdamOptions(spec.rate).eps(kEpsilon).weight_decay(
                        spec.weight_decay));
  }
  if (spec.kind == "rmsprop") {
    return std::make_unique<to::RMSprop>(
        parameters,
        to::RMSpropOptions(spec.rate).eps(kEpsilon).momentum(spec.momentum));
  }
  if (spec.kind != "sgd") throw std::invalid_argument(spec.kind);
  return std::make_unique<to::SGD>(parameters,
                                   to::SGDOptions(spec.rate)
                                       .momentum(spec.momentum)
                                       .weight_decay(spec.weight_decay)
                                       .nesterov(spec.nesterov));
}

}  // namespace

AnyOptimizer::AnyOptimizer(const OptimizerSpec& spec,
                           const std::vector<Tensor>& parameters)
    : spec_(spec) {
  for (size_t p = 0; p < parameters.size(); ++p) {
    if (static_cast<int64_t>(p) % spec.parts == spec.part) {
      parameters_.push_back(parameters[p]);
    }
  }
  torch_ = make_torch(spec, parameters_);
}

void AnyOptimizer::scale_rate(double factor) { set_rate(spec_.rate * factor); }

void AnyOptimizer::multiply_rate(double factor) {
  set_rate(factor * torch_->param_groups()[0].options().get_lr());
}

void AnyOptimizer::set_rate(double rate) {
  for (auto& group : torch_->param_groups()) group.options().set_lr(rate);
}

void AnyOptimizer::raise_momentum() {
  const auto raised = [](double value) { return (value + 1) / 2; };
  visit_options([&](auto& options) {
    if constexpr (requires { options.betas(); }) {
      const auto [first, second] = options.betas();
      options.betas({raised(first), second});
    } else {
      options.momentum(raised(options.momentum()));
    }
  });
}

void AnyOptimizer::add_weight_decay(double more) {
  visit_options([&](auto& options) {
    options.weight_decay(options.weight_decay() + more);
  });
}

template <class Visit>
void AnyOptimizer::visit_options(const Visit& visit) {
  namespace to = torch::optim;
  for (auto& group : torch_->param_groups()) {
    auto& options = group.options();
    if (spec_.kind == "sgd") visit(static_cast<to::SGDOptions&>(options));
    if (spec_.kind == "adam") visit(static_cast<to::AdamOptions&>(options));
    if (spec_.kind == "adamw") visit(static_cast<to::AdamWOptions&>(options));
    if (spec_.kind == "rmsprop") {
      visit(static_cast<to::RMSpropOptions&>(options));
    }
  }
}

void AnyOptimizer::clear_state() { torch_->state().clear(); }

void AnyOptimizer::load_other_state() {
  std::vector<Tensor> copies;
  for (const Tensor& parameter : parameters_) {
    copies.push_back(parameter.detach().clone());
    copies.back().mutable_grad() = torch::ones_like(copies.back());
  }
  const auto other = make_torch(spec_, copies);
  other->step();
  // torch::load() also loads the options.
  other->param_groups()[0].set_options(
      torch_->param_groups()[0].options().clone());
  std::stringstream state;
  torch::save(*other, state);
  torch::load(*torch_, state);
}

}  // namespace lockstep::differential
