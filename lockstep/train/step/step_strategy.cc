#include "lockstep/train/step/step_strategy.h"

#include "lockstep/base/chunk.h"
#include "lockstep/device/autocast.h"
#include "lockstep/parallel/exchange/packed_tensors.h"
#include "lockstep/parallel/group/replica_group.h"

namespace lockstep::training {
namespace {

/// kSingle, kDataParallel and kDistributed: sums the gradients of the shards
/// along a tree.
class ShardedStep : public StepStrategy {
 public:
  explicit ShardedStep(const StepContext& context) : StepStrategy(context) {}

  StepResult step(const StepInput& input) override {
    const TrainOptions& options = context_.options;
    const AutocastScope precision(device_type(context_.plan),
                                  autocast_type(options.precision()));
    return optimizer_.train_step(
        engine_, input.batch.arguments(), input.batch.any_target(),
        loss_of(engine_batch(input.batch)),
        step_options(input.batch)
            .clip_grad_norm(options.clip_grad_norm())
            .loss_scale(input.loss_scale)
            .max_loss(input.max_loss)
            .verify_gradients(verifies_gradients(input.position.step)));
  }

 private:
  /// Returns the task's loss for the shards of a batch of `total` samples. The
  /// function also notes their metrics.
  ShardLoss loss_of(int64_t total) {
    const int64_t shards = engine_.group().shards();
    return [this, sizes = chunk_sizes(total, shards)](
               const c10::IValue& output,
               const c10::IValue& target) -> WeightedLoss {
      LossAndMetrics values = context_.task.loss(output, target);
      // The check of the first step also calls this function for other samples,
      // and then for the first shard again.
      const int64_t shard = current_shard();
      agreement_.metrics().replace(shard, sizes[static_cast<size_t>(shard)],
                                   values.metrics);
      return values;
    };
  }

  /// Returns true if step `step`, counted from 0, computes its gradients twice.
  bool verifies_gradients(int64_t step) const {
    const int64_t every = context_.options.verify().gradients_every();
    return every > 0 && (step + 1) % every == 0;
  }
};

/// kDistributed with local_steps: each rank makes its own sharded steps, and an
/// outer step combines their parameters. Between outer steps, each rank has its
/// own parameters and outcomes.
class LocalStep : public ShardedStep {
 public:
  explicit LocalStep(const StepContext& context)
      : ShardedStep(context), outer_(make_outer(context)) {}

  StepOutcome agree(const StepInput& input, const StepResult& result) override {
    const bool meets = is_common(input.position);
    if (meets && result.is_finite) outer_.step();
    return agreement_.after_local_step(result, input.batch.total,
                                       input.stop_signal, meets);
  }
  int64_t engine_batch(const data::Batch& batch) const override {
    return batch.samples;
  }
  std::vector<int64_t> split(int64_t batch_size) const override {
    return chunk_sizes(batch_size, context_.plan.ranks);
  }
  bool ranks_share_state() const override { return false; }
  OuterStep* outer_step() override { return &outer_; }

 private:
  // Each rank made or loaded the same model. Rank 0's is used on every rank.
  static OuterStep make_outer(const StepContext& context) {
    const ModuleHandle& model = context.parts.model;
    broadcast(context.world, model.parameters, 0);
    broadcast(context.world, model.buffers, 0);
    return OuterStep(context.world, model, context.options.communication());
  }

  /// Returns true if the ranks meet in the step at `position`.
  bool is_common(const Position& position) const {
    const int64_t done = position.step + 1;
    return done % context_.options.communication().local_steps() == 0 ||
           done == position.total_steps;
  }

  OuterStep outer_;
};

}  // namespace

StepStrategy::StepStrategy(const StepContext& context)
    : context_(context),
      engine_(*context.parts.engine),
      optimizer_(*context.parts.optimizer),
      agreement_(context.world, engine_.group().shards(),
                 trains_locally(context.options, context.plan),
                 context.task.loss_reduction()) {}

StepOutcome StepStrategy::agree(const StepInput& input,
                                const StepResult& result) {
  return agreement_.after_step(result, input.stop_signal);
}

std::vector<int64_t> StepStrategy::split(int64_t batch_size) const {
  return engine_.group().split(batch_size);
}

bool StepStrategy::ranks_share_state() const {
  return context_.world.can_share_memory();
}

int64_t StepStrategy::copies() const {
  const Plan& plan = context_.plan;
  if (plan.ranks > 1) return ranks_share_state() ? 1 : plan.ranks;
  return plan.devices.front().is_cpu()
             ? 1
             : static_cast<int64_t>(plan.devices.size());
}

bool StepStrategy::can_leave_out_updates() const {
  return optimizer_.updates_in_blocks();
}

TrainStepOptions StepStrategy::step_options(const data::Batch& batch) const {
  return TrainStepOptions()
      .total_samples(engine_batch(batch))
      .loss_reduction(context_.task.loss_reduction())
      .empty_batch(context_.task.empty_batch())
      .warn_not_finite(false);  // the run reports this itself
}

std::unique_ptr<StepStrategy> make_strategy(const StepContext& context) {
  if (is_classic(context.options)) return make_classic_strategy(context);
  if (trains_locally(context.options, context.plan)) {
    return std::make_unique<LocalStep>(context);
  }
  return std::make_unique<ShardedStep>(context);
}

}  // namespace lockstep::training
