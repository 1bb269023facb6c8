#include "lockstep/train/step/step_strategy.h"

namespace lockstep::train {

StepStrategy::StepStrategy(const StepContext& context)
    : context_(context),
      engine_(*context.parts.engine),
      optimizer_(*context.parts.optimizer),
      agreement_(context.world, engine_.group().shards(),
                 trains_locally(context.options, context.plan),
                 context.task.loss_reduction()) {}

StepOutcome StepStrategy::agree(const StepInput& input,
                                const StepResult& result) {
  return agreement_.of_step(result, input.stop_signal);
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
      .batch(engine_batch(batch))
      .loss_reduction(context_.task.loss_reduction())
      .empty_batch(context_.task.empty_batch())
      .warn_not_finite(false);  // the run reports this itself
}

std::unique_ptr<StepStrategy> make_strategy(const StepContext& context) {
  if (is_classic(context.options)) return make_classic_strategy(context);
  return trains_locally(context.options, context.plan)
             ? make_local_strategy(context)
             : make_sharded_strategy(context);
}

}  // namespace lockstep::train
