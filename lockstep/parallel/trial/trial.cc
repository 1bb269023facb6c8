#include "lockstep/parallel/trial/trial.h"

#include <functional>
#include <utility>

#include "lockstep/device/autocast.h"
#include "lockstep/device/tensor_checksum.h"
#include "lockstep/parallel/module/nested.h"

namespace lockstep {

using c10::IValue;
using torch::Tensor;

namespace {

/// Drops autocast's copies of weights, which belong to a graph that is gone.
class DropCasts {
 public:
  DropCasts() = default;
  ~DropCasts() {
    if (has_autocast()) drop_cast_weights();
  }
  DropCasts(const DropCasts&) = delete;
  DropCasts& operator=(const DropCasts&) = delete;
};

}  // namespace

Trial trial_of(const StepContext& step) {
  return {.group = step.group,
          .batch = step.batch,
          .stream = step.group.step_stream(),
          .loss = &step.loss,
          .reduction = step.options.loss_reduction()};
}

TrialPass Trial::compute(Replica& replica, size_t part, Extent extent) const {
  const DropCasts drops_casts;
  const IValue& own = batch.parts[part];
  TrialPass pass;
  pass.gradient_sums.resize(group.parameters().size());
  const torch::AutoGradMode with_grad(loss || torch::GradMode::is_enabled());
  Shard shard(group, batch, /*worker=*/0, index_of(part), replica,
              Shard::Mode::kCheck);
  if (extent == Extent::kForwardOfOthers) {
    shard.forward(batch.differentiable.with_other_samples(own, group.dim()));
  } else {
    shard.forward(own);
  }
  if (extent == Extent::kForwardAndBackward && loss) {
    shard.compute_loss(*loss, reduction);
    pass.loss = shard.loss().detach();
  }
  pass.output = detached(shard.output());
  if (extent != Extent::kForwardAndBackward) return pass;

  // The replica may have the parameter in a smaller type than the module.
  const auto note_sum = [&](size_t p, const Tensor& gradient) {
    pass.gradient_sums[p] =
        checksum_of(gradient.to(group.parameters()[p].scalar_type()));
  };
  if (!loss || shard.seed() == 0) {
    pass.gradients = trial_backward(shard.output(), shard.leaves());
  } else if (group.options().zero() == ZeroStage::kGradients) {
    // This rank must not hold all gradients at once.
    const auto free_gradient = [&](size_t p, const Tensor& leaf) {
      note_sum(p, leaf.grad());
      leaf.mutable_grad().reset();
    };
    pass.gradients = shard.backward(/*loss_scale=*/1, free_gradient).gradients;
  } else {
    pass.gradients = shard.backward(/*loss_scale=*/1).gradients;
  }
  for (size_t p = 0; p < pass.gradient_sums.size(); ++p) {
    const Tensor& gradient = pass.gradients.parameters[p].tensor();
    if (gradient.defined()) note_sum(p, gradient);
  }
  return pass;
}

void Trial::on_first_graph(
    const std::function<void(const Tensor& loss, const Replica& replica)>&
        visit) const {
  const DropCasts drops_casts;
  on_shard(0, [&](Replica& replica) {
    const torch::AutoGradMode with_grad(true);
    group.load_replica(index_of(0), replica);
    Shard shard(group, batch, /*worker=*/0, index_of(0), replica,
                Shard::Mode::kCheck);
    shard.forward(cloned(batch.parts.front()));
    shard.compute_loss(*loss, reduction);
    visit(shard.loss(), replica);
  });
}

std::vector<ShardPass> Trial::compute_losses(
    std::vector<IValue>& outputs) const {
  const DropCasts drops_casts;
  std::vector<ShardPass> passes(batch.parts.size());
  outputs.resize(batch.parts.size());
  group.for_each_shard(
      shards(), stream, [&](size_t worker, int64_t index, Replica& replica) {
        const size_t part = batch.part_of(index);
        const torch::AutoGradMode with_grad(true);
        group.load_replica(index, replica);
        Shard shard(group, batch, worker, index, replica, Shard::Mode::kCheck);
        shard.forward(batch.parts[part]);
        shard.compute_loss(*loss, reduction);
        outputs[part] = detached(shard.output());
        passes[part] = shard.take_pass();
        passes[part].loss = passes[part].loss.detach();
      });
  return passes;
}

}  // namespace lockstep
