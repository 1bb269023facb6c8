#include "tests/differential/optimizers.h"

#include <map>
#include <sstream>
#include <stdexcept>
#include <string>

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

std::unique_ptr<optim::Optimizer> make_own(
    const OptimizerSpec& spec, const std::vector<Tensor>& parameters,
    const optim::StateFactory& make_state) {
  if (spec.kind == "adamw") {
    return optim::adamw(parameters, optim::AdamWOptions(spec.rate)
                                        .eps(kEpsilon)
                                        .weight_decay(spec.weight_decay)
                                        .make_state(make_state));
  }
  return optim::sgd(parameters, optim::SGDOptions(spec.rate)
                                    .momentum(spec.momentum)
                                    .weight_decay(spec.weight_decay)
                                    .nesterov(spec.nesterov)
                                    .make_state(make_state));
}

}  // namespace

AnyOptimizer::AnyOptimizer(const OptimizerSpec& spec,
                           const std::vector<Tensor>& parameters,
                           const optim::StateFactory& make_state)
    : spec_(spec) {
  for (size_t p = 0; p < parameters.size(); ++p) {
    if (static_cast<int64_t>(p) % spec.parts == spec.part) {
      parameters_.push_back(parameters[p]);
    }
  }
  if (spec.is_own && make_state) {
    own_ = make_own(spec, parameters_, make_state);
  } else {
    torch_ = make_torch(spec, parameters_);
  }
}

void AnyOptimizer::scale_rate(double factor) { set_rate(spec_.rate * factor); }

void AnyOptimizer::multiply_rate(double factor) {
  set_rate(factor *
           (own_ ? own_->lr() : torch_->param_groups()[0].options().get_lr()));
}

void AnyOptimizer::set_rate(double rate) {
  if (own_) return own_->set_lr(rate);
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
  if (!torch_) throw std::invalid_argument("not an optimizer of LibTorch");
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

void AnyOptimizer::clear_state() {
  if (torch_) return torch_->state().clear();
  std::map<std::string, Tensor> state = own_->state_dict();
  for (auto& [name, tensor] : state) tensor = torch::zeros_like(tensor);
  own_->load_state_dict(state);
}

void AnyOptimizer::load_other_state() {
  std::vector<Tensor> copies;
  for (const Tensor& parameter : parameters_) {
    copies.push_back(parameter.detach().clone());
    copies.back().mutable_grad() = torch::ones_like(copies.back());
  }
  const auto other = make_torch(spec_, copies);
  other->step();
  if (own_) return own_->load_state_dict(own_state_of(*other, copies));
  // torch::load() also loads the options.
  other->param_groups()[0].set_options(
      torch_->param_groups()[0].options().clone());
  std::stringstream state;
  torch::save(*other, state);
  torch::load(*torch_, state);
}

std::map<std::string, Tensor> AnyOptimizer::own_state_of(
    torch::optim::Optimizer& other,
    const std::vector<Tensor>& parameters) const {
  std::map<std::string, Tensor> named;
  for (size_t p = 0; p < parameters.size(); ++p) {
    const std::string number = "." + std::to_string(p);
    auto& state = *other.state().at(parameters[p].unsafeGetTensorImpl());
    if (spec_.kind == "sgd") {
      const auto& sgd = static_cast<torch::optim::SGDParamState&>(state);
      named["momentum_buffer" + number] = sgd.momentum_buffer();
    } else {
      const auto& adam = static_cast<torch::optim::AdamWParamState&>(state);
      named["exp_avg" + number] = adam.exp_avg();
      named["exp_avg_sq" + number] = adam.exp_avg_sq();
      named["step" + number] = torch::tensor(1.0F);
    }
  }
  return named;
}

}  // namespace lockstep::differential
