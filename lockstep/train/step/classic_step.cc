#include <cmath>
#include <optional>
#include <utility>

#include "lockstep/base/stopwatch.h"
#include "lockstep/base/trace.h"
#include "lockstep/device/autocast.h"
#include "lockstep/device/links/device_copy.h"
#include "lockstep/device/memory.h"
#include "lockstep/parallel/group/replica_group.h"
#include "lockstep/parallel/module/nested.h"
#include "lockstep/parallel/step/batch_loss.h"
#include "lockstep/parallel/step/not_finite_report.h"
#include "lockstep/train/step/step_strategy.h"

namespace lockstep::training {
namespace {

using torch::Tensor;

class ClassicStep : public StepStrategy {
 public:
  explicit ClassicStep(const StepContext& context)
      : StepStrategy(context), main_thread_s_(context.plan.devices.size()) {}

  StepResult step(const StepInput& input) override;
  int64_t copies() const override {
    return static_cast<int64_t>(context_.plan.devices.size());
  }
  bool can_leave_out_updates() const override { return false; }
  double main_thread_s(size_t device) const override {
    return main_thread_s_[device];
  }
  void restart_accounts() override {
    main_thread_s_.assign(context_.plan.devices.size(), 0);
  }

 private:
  /// The outputs and the loss. They live until the update, as in the textbook.
  struct Forward {
    c10::IValue output, target;
    LossAndMetrics values;
    StepResult result;
  };

  /// Computes the outputs, and the loss of the whole batch on the output
  /// device.
  Forward forward(const StepInput& input);
  void update(StepResult& result);

  // The time that the caller's thread works for each device.
  std::vector<double> main_thread_s_;
};

ClassicStep::Forward ClassicStep::forward(const StepInput& input) {
  const data::Batch& batch = input.batch;
  const size_t output_device = context_.plan.output_device;
  const AutocastScope precision(device_type(context_.plan),
                                autocast_type(context_.options.precision()));
  const MemoryScope output_scope(context_.plan.devices[output_device]);
  c10::IValue output = engine_.forward(batch.arguments());
  const Stopwatch watch;
  const TraceSpan span("loss", TraceCategory::kCompute);
  c10::IValue target =
      map_tensors(batch.any_target(), [&](const Tensor& tensor) {
        return to_device(tensor, engine_.group().output_device());
      });
  LossAndMetrics values = context_.task.loss(output, target);
  const TrainStepOptions options = step_options(batch);
  // The loss is that of the whole batch, so its weight matters only if it is 0.
  const double weight = checked_weight(values, batch.samples);
  const bool is_empty =
      weight == 0 && options.loss_reduction() == LossReduction::kMean;
  check_batch_weight({.weight = weight, .is_empty = is_empty}, options);
  StepResult result{.loss = is_empty ? 0 : values.loss.item<double>(),
                    .samples = batch.samples,
                    .weight = weight,
                    .is_empty = is_empty};
  agreement_.metrics().add(0, batch.samples, values.metrics);
  result.is_finite = std::isfinite(result.loss);
  result.is_too_high = result.is_finite && result.loss > input.max_loss;
  main_thread_s_[output_device] += watch.seconds();
  return {.output = std::move(output),
          .target = std::move(target),
          .values = std::move(values),
          .result = std::move(result)};
}

void ClassicStep::update(StepResult& result) {
  const auto span =
      engine_.group().clock().time(StepClock::Phase::kUpdate, "update");
  const double clip_norm = context_.options.clip_grad_norm();
  if (result.updates() && clip_norm > 0) {
    clip_grad_norm(optimizer_.parameters(), context_.parts.model, clip_norm,
                   result);
  }
  if (result.updates()) optimizer_.step();
}

StepResult ClassicStep::step(const StepInput& input) {
  std::optional<MemoryScope> scope;
  charge_first_device(context_.options, context_.plan, scope);
  optimizer_.zero_grad();
  Forward made = forward(input);
  StepResult& result = made.result;
  if (!result.is_empty) made.values.loss.backward();
  if (!result.is_finite) {
    result.not_finite =
        first_not_finite(input.batch.arguments(), input.batch.any_target(),
                         context_.parts.model);
  }
  update(result);
  main_thread_s_.front() += engine_.group().clock().times().update_s;
  return result;
}

}  // namespace

std::unique_ptr<StepStrategy> make_classic_strategy(
    const StepContext& context) {
  return std::make_unique<ClassicStep>(context);
}

}  // namespace lockstep::training
