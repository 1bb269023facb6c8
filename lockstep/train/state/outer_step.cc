#include "lockstep/train/state/outer_step.h"

#include <map>
#include <unordered_set>
#include <vector>

#include <fmt/format.h>

#include "lockstep/parallel/exchange/gradient_buckets.h"
#include "lockstep/parallel/exchange/packed_tensors.h"

namespace lockstep::training {

using torch::Tensor;

namespace {

// Small tensors of a type are sent in one message, because there may be
// hundreds of them.
void sum_over_ranks(const ProcessGroup& world,
                    const std::vector<Tensor>& tensors) {
  std::map<torch::ScalarType, ModuleHandle::Named> small;
  for (const Tensor& tensor : tensors) {
    if (is_large(tensor)) {
      world.all_reduce(tensor);
    } else {
      small[tensor.scalar_type()].emplace_back("", tensor);
    }
  }
  for (const auto& [type, of_type] : small) {
    PackedTensors packed(of_type);
    if (packed.empty()) continue;
    packed.pack();
    world.all_reduce(packed.message().view(type));
    packed.unpack();
  }
}

}  // namespace

OuterStep::OuterStep(const ProcessGroup& world, const ModuleHandle& module,
                     const CommunicationOptions& options)
    : world_(world),
      buffers_(module.buffers),
      options_(options),
      lr_(options.outer_lr().value_or(
          options.outer_optimizer() == OuterOptimizer::kNesterov ? 0.7 : 1.0)) {
  const torch::NoGradGuard no_grad;
  std::unordered_set<const void*> seen;
  for (const auto& [name, parameter] : module.parameters) {
    if (!seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
    parameters_.push_back(parameter);
    anchor_.push_back(parameter.detach().clone());
    if (options_.outer_optimizer() == OuterOptimizer::kNesterov) {
      momentum_.push_back(torch::zeros_like(anchor_.back()));
    }
  }
}

torch::ScalarType OuterStep::type_of(const Tensor& parameter) const {
  switch (options_.compression()) {
    case GradCompression::kBFloat16:
      return torch::kBFloat16;
    case GradCompression::kFloat16:
      return torch::kHalf;
    default:
      return parameter.scalar_type();
  }
}

void OuterStep::step() {
  const torch::NoGradGuard no_grad;
  std::vector<Tensor> changes;
  for (size_t p = 0; p < parameters_.size(); ++p) {
    // Divided first, so that a sum of rounded numbers can't overflow.
    changes.push_back(((anchor_[p] - parameters_[p]) / world_.size())
                          .to(type_of(parameters_[p])));
  }
  sum_over_ranks(world_, changes);
  for (size_t p = 0; p < parameters_.size(); ++p) {
    Tensor change = changes[p].to(anchor_[p].scalar_type());
    if (options_.outer_optimizer() == OuterOptimizer::kNesterov) {
      momentum_[p].mul_(options_.outer_momentum()).add_(change);
      change = change.add(momentum_[p], options_.outer_momentum());
    }
    anchor_[p].sub_(change, lr_);
    parameters_[p].copy_(anchor_[p]);
  }
  broadcast(world_, buffers_, 0);
}

OptimizerState OuterStep::state() const {
  OptimizerState state;
  for (size_t p = 0; p < momentum_.size(); ++p) {
    state[fmt::format("momentum.{}", p)] = momentum_[p];
  }
  return state;
}

void OuterStep::load_state(const OptimizerState& state) {
  const torch::NoGradGuard no_grad;
  for (size_t p = 0; p < momentum_.size(); ++p) {
    momentum_[p].copy_(state.at(fmt::format("momentum.{}", p)));
  }
  for (size_t p = 0; p < parameters_.size(); ++p) {
    anchor_[p].copy_(parameters_[p]);
  }
}

}  // namespace lockstep::training
