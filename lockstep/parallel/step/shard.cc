#include "lockstep/parallel/step/shard.h"

#include <utility>

#include "lockstep/device/autocast.h"
#include "lockstep/parallel/step/batch_loss.h"

namespace lockstep {

using c10::IValue;
using torch::Tensor;

StepClock::Span Shard::time(StepClock::Phase phase, const char* name) const {
  if (mode_ == Mode::kCheck) return StepClock::nothing();
  return group_.clock().time_shard(phase, worker_, index_, name);
}

void Shard::enter(StepPhase phase) const {
  if (mode_ == Mode::kStep) group_.clock().enter(phase);
}

const IValue& Shard::forward(const IValue& part) {
  enter(StepPhase::kForward);
  replica_.drop_gradients();
  part_ = part;
  pass_.input_leaves.clear();
  chunk_ = batch_.differentiable.cut_from_graph(part, pass_.input_leaves);
  auto [arguments, target] = arguments_and_target(chunk_);
  target_ = std::move(target);
  const bool is_check = mode_ == Mode::kCheck;
  if (!is_check) {
    const auto span = time(StepClock::Phase::kReplicate, "replicate");
    group_.load_replica(index_, replica_);
  }
  const auto span = time(StepClock::Phase::kForward, "forward");
  const auto& on_shard = group_.options().on_shard();
  if (on_shard && !is_check) on_shard(arguments);
  output_ = replica_.module().forward(arguments);
  if (!is_check) group_.keep_buffers(index_, replica_);
  return output_;
}

void Shard::pass_on_writes() const {
  batch_.differentiable.pass_on_writes(part_, chunk_, group_.shards());
}

void Shard::compute_loss(const ShardLoss& loss, LossReduction reduction) {
  const auto span = time(StepClock::Phase::kForward, "loss");
  const WeightedLoss result = loss(output_, target_);
  pass_.weight =
      checked_weight(result, batch_.shard_samples[static_cast<size_t>(index_)]);
  pass_.states_weight = result.weight.defined();
  pass_.seed = loss_seed(pass_.weight, batch_.samples, reduction);
  pass_.loss = result.loss;
}

ShardPass Shard::backward(
    double loss_scale,
    std::function<void(size_t p, const Tensor& leaf)> on_gradient) {
  enter(StepPhase::kBackward);
  const auto span = time(StepClock::Phase::kBackward, "backward");
  output_ = IValue();  // only the graph still holds it
  pass_on_writes();
  // The backward computes in the types that the forward used.
  const NoAutocast no_autocast;
  ShardLeaves leaves = this->leaves();
  leaves.on_gradient = std::move(on_gradient);
  // A shard that does not contribute to the batch's loss has no backward: its
  // loss may be NaN, and 0 times NaN would be NaN.
  const Tensor seed =
      pass_.seed == 0 ? Tensor()
                      : torch::full_like(pass_.loss, pass_.seed * loss_scale);
  pass_.gradients =
      shard_backward({pass_.loss}, {seed}, /*keep_graph=*/false, leaves);
  pass_.loss = pass_.loss.detach();
  return std::move(pass_);
}

}  // namespace lockstep
