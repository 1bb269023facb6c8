#include "lockstep/parallel/check/step_check.h"

#include <bit>
#include <exception>
#include <optional>
#include <span>
#include <utility>

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/base/trace.h"
#include "lockstep/parallel/check/follow_members.h"
#include "lockstep/parallel/check/loss_check.h"
#include "lockstep/parallel/group/parallel_apply.h"
#include "lockstep/parallel/module/kept_tensors.h"
#include "lockstep/parallel/module/nested.h"

namespace lockstep {

using c10::IValue;
using torch::Tensor;

namespace {

// Samples of each shard with which a step is checked again. Normalisation over
// the samples needs more than one.
constexpr int64_t kFewSamples = 2;

KeptTensors kept_inputs(const StepBatch& batch) {
  std::vector<Tensor> tensors;
  for (const TensorAtPath& at : tensors_in(batch.all)) {
    tensors.push_back(at.tensor.detach());
  }
  for (const IValue& part : batch.parts) {
    for (const TensorAtPath& at : tensors_in(part)) {
      tensors.push_back(at.tensor.detach());
    }
  }
  return KeptTensors(std::move(tensors));
}

bool is_out_of_memory(const std::exception_ptr& cause) {
  try {
    std::rethrow_exception(cause);
  } catch (const c10::OutOfMemoryError&) {
    return true;
  } catch (const Error& error) {
    return error.code() == ErrorCode::kOutOfMemory;
  } catch (const std::exception&) {
    return false;
  }
}

void warn_of_assigned_members(const ReplicaGroup& group) {
  warn_once("members-assigned", "parallel",
            fmt::format("forward() of {0} assigns to members that are not "
                        "registered. Each replica has its own, and those of "
                        "model->module() keep what a trial left in them: "
                        "return from forward() what the program reads",
                        group.original().type));
}

/// Checks the losses of this rank's shards and of all ranks, in the thread of
/// the first shard. Collective.
void check_loss(const Trial& trial, const ProcessGroup& ranks,
                const std::vector<ShardPass>& passes,
                const std::vector<IValue>& outputs, Findings& findings) {
  const StepBatch& batch = trial.batch;
  const auto whole = arguments_and_target(batch.all);
  const auto in_first_shard = [&](const auto& check) {
    trial.on_shard(0, [&](Replica& replica) {
      const TraceSpan span("check loss", TraceCategory::kCompute);
      const IValue first_target =
          detached(arguments_and_target(batch.parts.front()).second);
      check(ComputedShards{
          .loss = *trial.loss,
          .reduction = trial.reduction,
          .dim = trial.group.dim(),
          .replica = replica,
          .inputs = whole.first,
          .target = whole.second,
          .first_target = first_target,
          .passes = passes,
          .outputs = outputs,
          .samples = std::span(batch.shard_samples)
                         .subspan(static_cast<size_t>(trial.index_of(0)),
                                  passes.size())});
    });
  };
  std::optional<IValue> sample;
  if (!findings.problem && !passes.empty()) {
    in_first_shard([&](const ComputedShards& own) {
      sample = check_loss_is_mean(own, findings);
    });
  }
  if (ranks.size() == 1) return;
  if (findings.problem) sample.reset();
  const auto per_rank = gather_samples(ranks, sample, findings);
  if (per_rank.empty()) return;
  in_first_shard([&](const ComputedShards& own) {
    check_loss_over_ranks(own, per_rank, findings);
  });
}

}  // namespace

StepCheck::StepCheck(Verify when, bool warns) : when_(when), warns_(warns) {
  if (when_ == Verify::kNever) module_.state = loss_ = CheckState::kOff;
}

StepCheck::Due StepCheck::due(const Schedule& schedule) const {
  if (when_ == Verify::kNever) return Due::kNot;
  if (schedule.state == CheckState::kPending) return Due::kFirst;
  if (schedule.state != CheckState::kPassed || when_ != Verify::kDoubling) {
    return Due::kNot;
  }
  const auto number = static_cast<uint64_t>(schedule.steps + 1);
  return checks_next_ || std::has_single_bit(number) ? Due::kAgain : Due::kNot;
}

Extent StepCheck::extent_again() const {
  const auto number = static_cast<uint64_t>(module_.steps + 1);
  const bool is_odd_power =
      std::has_single_bit(number) && std::countr_zero(number) % 2 == 1;
  return is_odd_power && !checks_next_ ? Extent::kForward
                                       : Extent::kForwardAndBackward;
}

void StepCheck::follow_build(const ReplicaGroup& group, bool has_gradients) {
  if (when_ == Verify::kNever) return;
  if (build_ == group.build() && (has_gradients_ || !has_gradients)) return;
  build_ = group.build();
  has_gradients_ = has_gradients;
  module_ = {};
}

void StepCheck::before_step(const StepContext& step) {
  const Trial trial = trial_of(step);
  follow_members(trial, when_ != Verify::kNever);
  follow_build(step.group, /*has_gradients=*/true);
  // Two lambdas have two types, so the two losses of a GAN are checked
  // separately.
  Schedule& loss = losses_[std::type_index(step.loss.target_type())];
  // With one shard, the shard is the whole batch.
  const Checks checks{.module = due(module_),
                      .loss = step.group.shards() > 1 ? due(loss) : Due::kNot};
  if (checks.any()) {
    if (step.exchange) step.exchange->meet();
    check(trial, step.ranks, checks, &loss);
  }
  ++module_.steps;
  ++loss.steps;
}

void StepCheck::before_forward(const ForwardContext& forward) {
  const bool has_gradients = torch::GradMode::is_enabled();
  const bool trains = has_gradients && forward.group.is_training();
  const Trial trial{.group = forward.group,
                    .batch = forward.batch,
                    .stream = forward.stream,
                    .loss = nullptr};
  follow_members(trial, when_ != Verify::kNever);
  follow_build(forward.group, has_gradients);
  Due module = due(module_);
  if (!trains && module == Due::kAgain) module = Due::kNot;
  if (module != Due::kNot) {
    check(trial, ProcessGroup(), {.module = module}, /*loss=*/nullptr);
  }
  if (trains) ++module_.steps;
}

void StepCheck::describe(StepCheckReport& report) const {
  report = {.module = to_string(module_.state),
            .loss = to_string(loss_),
            .reason = reason_};
}

StepCheck::Computed StepCheck::compute(const Trial& trial, const Checks& checks,
                                       const KeptTensors& buffers) const {
  Computed computed;
  if (checks.module != Due::kNot) {
    const TraceSpan span("check replica", TraceCategory::kCompute);
    computed.comparison =
        checks.module == Due::kFirst
            ? run_module_first(trial, buffers)
            : run_module_again(trial, buffers, extent_again());
    MemberWatch& members = trial.group.members();
    if (!trial.loss && members.has_change()) {
      warn_of_assigned_members(trial.group);
    }
    members.skip();
    if (computed.comparison) compare_replica(trial, *computed.comparison);
  }
  if (checks.loss != Due::kNot) {
    run_and_restore(
        [&] { computed.passes = trial.compute_losses(computed.outputs); },
        [&] { buffers.restore(); });
  }
  return computed;
}

void StepCheck::check(const Trial& trial, const ProcessGroup& ranks,
                      const Checks& checks, Schedule* loss) {
  std::vector<KeptTensors> inputs;
  Findings findings;
  run_and_restore([&] { findings = findings_of(trial, ranks, checks, inputs); },
                  [&] {
                    for (const KeptTensors& kept : inputs) kept.restore();
                  });
  if (findings.problem) refuse(*findings.problem, checks, loss);
  checks_next_ = false;
  if (checks.module != Due::kNot) note("replicas", findings.module, module_);
  if (checks.loss != Due::kNot) {
    note("the loss", findings.loss, *loss);
    if (loss_ != CheckState::kImpossible) loss_ = loss->state;
  }
}

Findings StepCheck::findings_of(const Trial& trial, const ProcessGroup& ranks,
                                const Checks& checks,
                                std::vector<KeptTensors>& inputs) const {
  const KeptTensors buffers = kept_buffers(trial.group.original());
  std::optional<StepBatch> few;
  // A module that calls other ranks needs a batch that all of them can compute.
  if (!checks.any_first() && !trial.group.calls_ranks()) {
    few = first_samples_of(trial.batch, trial.group, kFewSamples);
  }
  const Trial with_few{.group = trial.group,
                       .batch = few ? *few : trial.batch,
                       .stream = trial.stream,
                       .loss = trial.loss,
                       .reduction = trial.reduction};
  const Trial* used = &with_few;
  inputs.push_back(kept_inputs(used->batch));
  Computed computed;
  if (checks.module == Due::kFirst) {
    computed = compute(*used, checks, buffers);
  } else if (!try_compute(*used, checks, buffers, computed) && few) {
    // The module or the loss may need more samples. If they fail with them,
    // too, the step itself will say why.
    used = &trial;
    inputs.push_back(kept_inputs(used->batch));
    try_compute(*used, checks, buffers, computed);
  }

  Findings findings;
  if (checks.module != Due::kNot) {
    ModuleComparison* const comparison = computed.comparison.get();
    if (comparison) findings.module = comparison->outcome();
    const bool differs = comparison && comparison->differs();
    if (is_any(ranks, differs) && comparison) {
      explain(*used, *comparison, findings);
    }
  }
  if (checks.loss != Due::kNot) {
    check_loss(*used, ranks, computed.passes, computed.outputs, findings);
  }
  agree(ranks, findings);
  return findings;
}

bool StepCheck::try_compute(const Trial& trial, const Checks& checks,
                            const KeptTensors& buffers,
                            Computed& computed) const {
  try {
    computed = compute(trial, checks, buffers);
    return true;
  } catch (const ReplicaError& error) {
    if (is_out_of_memory(error.cause())) throw;
    computed = {};
    return false;
  }
}

void StepCheck::refuse(Problem problem, const Checks& checks,
                       const Schedule* loss) {
  checks_next_ = true;  // a program that catches the error gets it again
  const bool is_module = problem.code.value == ErrorCode::kReplicaDiffers;
  if ((is_module ? checks.module : checks.loss) != Due::kAgain) {
    throw ParallelError("parallel", problem);
  }
  const Schedule& schedule = is_module ? module_ : *loss;
  const std::string since =
      counted(schedule.steps + 1 - schedule.passed_at, "step");
  if (is_module) {
    problem.what += fmt::format(", and it was the same {} ago", since);
    problem.fix = fmt::format(
        "something was changed that a wrapper can't see, such as a member of a "
        "submodule or an element of a vector: call rebuild() after such a "
        "change, or pass the value to forward(). The steps since then used the "
        "old value: continue from weights that are {} old",
        since);
  } else {
    problem.what +=
        fmt::format(". It was {} ago, so the loss function has changed", since);
    problem.fix += fmt::format(
        ". The steps since then used the new loss: continue from weights that "
        "are {} old",
        since);
  }
  throw ParallelError("parallel", problem);
}

void StepCheck::note(const char* what, const Outcome& outcome,
                     Schedule& schedule) {
  if (outcome.state == CheckState::kPending) return;
  schedule.state = outcome.state;
  schedule.passed_at = schedule.steps + 1;
  if (outcome.state != CheckState::kImpossible) return;
  if (reason_.empty()) reason_ = outcome.reason;
  if (!warns_) return;
  warn_once(fmt::format("first-step-{}-{}", what, outcome.reason), "parallel",
            fmt::format("a step could not check {}: {}. Compare a short run "
                        "with one of a single device yourself; "
                        "verify(Verify::kNever) switches the check off",
                        what, outcome.reason));
}

}  // namespace lockstep
