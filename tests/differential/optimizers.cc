#include "tests/differential/optimizers.h"

#include <stdexcept>

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
    : rate_(spec.rate) {
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

void AnyOptimizer::scale_rate(double factor) {
  const double rate = rate_ * factor;
  if (own_) return own_->set_lr(rate);
  for (auto& group : torch_->param_groups()) group.options().set_lr(rate);
}

}  // namespace lockstep::differential
