#include "lockstep/parallel/reduction/local_gradients.h"

#include <algorithm>

#include "lockstep/parallel/reduction/owned_gradient.h"

namespace lockstep {

using torch::Tensor;

namespace {

bool has_values(const Tensor& gradient) {
  return gradient.defined() && gradient.any().item<bool>();
}

}  // namespace

void LocalGradients::begin_backward() {
  if (is_in_step_) return;
  forget_if_empty();
  if (unit_ == Unit::kShares) multiply(ranks_);
  unit_ = Unit::kMeans;
}

void LocalGradients::add(const Tensor& parameter, const Tensor& incoming) {
  if (is_in_step_ || !incoming.defined()) return;
  state_of(parameter).is_local = true;
  has_backward_ = true;
  own_memory(parameter, incoming);
}

double LocalGradients::begin_step(const std::vector<Tensor>& parameters) {
  forget_if_empty();
  if (unit_ == Unit::kNone) {
    const bool is_empty = std::none_of(
        parameters.begin(), parameters.end(),
        [](const Tensor& parameter) { return has_values(parameter.grad()); });
    unit_ = is_empty ? Unit::kShares : Unit::kMeans;
  }
  return unit_ == Unit::kShares ? 1 : ranks_;
}

void LocalGradients::end_step(const std::vector<Tensor>& parameters) {
  has_step_ = true;
  for (const Tensor& parameter : parameters) {
    if (parameter.grad().defined()) state_of(parameter).is_local = true;
  }
}

bool LocalGradients::has_any() const {
  return std::any_of(states_.begin(), states_.end(), [](const auto& entry) {
    return entry.second.is_local && entry.second.parameter.grad().defined();
  });
}

bool LocalGradients::has(const Tensor& parameter) const {
  const State* state = find(parameter);
  return state && state->is_local && parameter.grad().defined();
}

void LocalGradients::clear(const Tensor& parameter) {
  const auto found = states_.find(parameter.unsafeGetTensorImpl());
  if (found != states_.end()) found->second.is_local = false;
}

void LocalGradients::add_shares(const std::vector<Tensor>& parameters,
                                double weight, double factor,
                                std::vector<OwnedGradient>& sums) {
  const auto share = share_factor(weight);
  if (!share) throw ParallelError("ddp", uneven_problem());
  const torch::NoGradGuard no_grad;
  for (size_t p = 0; p < parameters.size(); ++p) {
    if (!has(parameters[p])) continue;
    Tensor local = std::move(parameters[p].mutable_grad());
    parameters[p].mutable_grad().reset();
    clear(parameters[p]);
    if (!local.defined()) continue;
    // Two products, because one with both factors would be rounded differently.
    if (*share != 1) local = local * *share;
    if (factor != 1) local = local * factor;
    if (sums[p].defined()) {
      sums[p].tensor().add_(local);
    } else {
      sums[p] = OwnedGradient::take(std::move(local), parameters[p]);
    }
  }
  forget_if_empty();
}

std::optional<Problem> LocalGradients::begin_sum(double weight) {
  forget_if_empty();
  if (unit_ == Unit::kNone) return std::nullopt;
  if (weight == 0) {
    return Problem{
        .code = ErrorCode::kSamplesDiffer,
        .what =
            "this rank has no samples in the backward that ends no_sync(), "
            "so its gradients of before would get the weight 0",
        .expected = "a batch with samples for every rank",
        .fix = "leave out such a batch (drop_last)"};
  }
  const auto factor = share_factor(weight);
  if (!factor) return uneven_problem();
  if (*factor != weight) multiply(*factor / weight);
  unit_ = Unit::kMeans;
  return std::nullopt;
}

std::vector<Tensor> LocalGradients::take_sums(
    const std::vector<Tensor>& parameters) {
  std::vector<Tensor> taken(parameters.size());
  for (size_t p = 0; p < parameters.size(); ++p) {
    Tensor& gradient = parameters[p].mutable_grad();
    if (!gradient.defined() || has(parameters[p])) continue;
    taken[p] = gradient.clone();
    gradient.reset();
  }
  return taken;
}

void LocalGradients::forget_if_empty() {
  if (has_any()) return;
  for (auto& [impl, state] : states_) state.is_local = false;
  unit_ = Unit::kNone;
  has_backward_ = has_step_ = false;
}

LocalGradients::State& LocalGradients::state_of(const Tensor& parameter) {
  State& state = states_[parameter.unsafeGetTensorImpl()];
  // The state holds a reference to the parameter, so no other tensor can get
  // its address.
  state.parameter = parameter;
  return state;
}

const LocalGradients::State* LocalGradients::find(
    const Tensor& parameter) const {
  const auto found = states_.find(parameter.unsafeGetTensorImpl());
  return found == states_.end() ? nullptr : &found->second;
}

void LocalGradients::multiply(double factor) {
  const torch::NoGradGuard no_grad;
  for (auto& [impl, state] : states_) {
    if (!state.is_local || !state.parameter.grad().defined()) continue;
    state.parameter.mutable_grad() = state.parameter.grad() * factor;
  }
}

std::optional<double> LocalGradients::share_factor(double weight) const {
  const double even = 1.0 / ranks_;
  if (unit_ == Unit::kShares) return 1;
  if (!has_step_) return weight;
  if (!has_backward_ || weight == even) return even;
  return std::nullopt;
}

Problem LocalGradients::uneven_problem() {
  return {.code = ErrorCode::kMisuse,
          .what =
              "gradients of backward() and of train_step() were added up "
              "under no_sync(), and the batch that ends it has different "
              "numbers of samples on the ranks, by which only those of "
              "backward() are to be weighted",
          .expected = "as many samples on every rank",
          .fix = "use one of the two under no_sync(), or make that batch even"};
}

}  // namespace lockstep
