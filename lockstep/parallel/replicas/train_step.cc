#include "lockstep/parallel/replicas/train_step.h"

#include <algorithm>
#include <cmath>

#include <c10/util/ScopeExit.h>
#include <fmt/format.h>

#include "lockstep/base/chunk.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/stopwatch.h"
#include "lockstep/base/trace.h"
#include "lockstep/device/accelerator.h"
#include "lockstep/device/autocast.h"
#include "lockstep/device/tensor_checksum.h"
#include "lockstep/parallel/exchange/overlapped_sum.h"
#include "lockstep/parallel/module/nested.h"
#include "lockstep/parallel/module/scatter_gather.h"
#include "lockstep/parallel/replicas/batch_loss.h"
#include "lockstep/parallel/replicas/loss_check.h"
#include "lockstep/parallel/replicas/not_finite_report.h"
#include "lockstep/parallel/replicas/shard_backward.h"

namespace lockstep {

using c10::IValue;
using torch::Tensor;

namespace {

IValue copy_of(const IValue& value) {
  const torch::NoGradGuard no_grad;
  return map_tensors(value,
                     [](const Tensor& tensor) { return tensor.clone(); });
}

IValue tuple_of(std::vector<IValue> inputs, const IValue& target) {
  inputs.push_back(target);
  return c10::ivalue::Tuple::create(std::move(inputs));
}

/// Returns the inputs and the target in the result of tuple_of(), or in a part
/// of it.
std::pair<std::vector<IValue>, IValue> inputs_and_target(const IValue& tuple) {
  std::vector<IValue> inputs = tuple.toTupleRef().elements().vec();
  IValue target = std::move(inputs.back());
  inputs.pop_back();
  return {std::move(inputs), std::move(target)};
}

void multiply(std::vector<Tensor>& gradients, double factor) {
  if (factor == 1) return;
  const torch::NoGradGuard no_grad;
  for (Tensor& gradient : gradients) {
    if (gradient.defined()) gradient.mul_(factor);
  }
}

}  // namespace

StepResult TrainStep::run(const std::vector<IValue>& inputs,
                          const IValue& target, const ShardLoss& loss,
                          optim::Optimizer* optimizer) {
  check_reduction(options_);
  Stopwatch watch;
  std::optional<TraceSpan> scatter_span(std::in_place, "scatter",
                                        TraceCategory::kCompute);
  // The inputs and the target, either of which may require grad.
  const IValue all = tuple_of(inputs, target);
  const DifferentiableInputs differentiable(all);
  if (exchange_) differentiable.check_none_is_shared();
  const Shards shards = cut(all, /*trains=*/true);
  if (exchange_) exchange_->load_buffers();
  const std::vector<size_t> positions =
      optimizer ? update_.positions_in(*optimizer) : std::vector<size_t>();
  const bool can_cast = can_use_casts(optimizer, positions);
  refresh_casts(optimizer);
  group_.begin(shards.count(), can_cast && group_.cast_weights().state() ==
                                               CastWeights::State::kInUse);
  const double scatter_s = watch.seconds();
  scatter_span.reset();

  // Verified gradients, and those to which local ones are added, are not known
  // before the backward ends.
  const bool can_overlap =
      exchange_ && !local_gradients_ && !options_.verify_gradients();
  OverlappedSum* const overlapped =
      can_overlap ? exchange_->overlapped_sum(shards.count()) : nullptr;
  // If the step throws, other ranks must not wait for this one.
  const auto abandons = c10::make_scope_exit([&] {
    if (overlapped) overlapped->abandon();
  });
  const double loss_scale = optimizer ? options_.loss_scale() : 1;
  Passes passes = compute_shards({.shards = shards,
                                  .differentiable = differentiable,
                                  .inputs = inputs,
                                  .target = target,
                                  .loss = loss,
                                  .loss_scale = loss_scale,
                                  .overlapped = overlapped,
                                  .can_cast = can_cast});
  group_.collect_phases();
  group_.phases().scatter_s = scatter_s;
  group_.finish_buffers(shards.count());
  group_.count_step();

  watch.restart();
  const bool has_weights =
      std::any_of(passes.parts.begin(), passes.parts.end(),
                  [](const ShardPass& pass) { return pass.states_weight; });
  if (has_weights && (is_local() || local_gradients_)) {
    check_has_total_weight(options_);
  }
  OuterGradients outer = outer_gradients(differentiable, passes);
  StepTotals& totals = passes.totals;
  totals.needs_grad =
      optimizer && (!outer.empty() || update_.needs_grad(positions));
  CommonState::Contents state;
  if (exchange_ && group_.options().verify_ranks()) {
    state = update_.common_state(optimizer, positions);
    totals.state = exchange_->common_state().next(state);
  }
  enter(StepPhase::kAllReduce);
  Reduction reduction =
      reduce(partials_of_rank(std::move(passes.partials), shards, loss_scale),
             shards.count(), totals);
  if (totals.has_other_state) {
    exchange_->common_state().explain(state, group_.options().process_group());
  }
  const BatchLoss batch = batch_loss(totals, options_, is_local());
  StepResult result{.loss = batch.loss,
                    .samples = shards.batch,
                    .weight = batch.weight,
                    .is_empty = batch.is_empty};
  for (size_t part = 0; part < passes.parts.size(); ++part) {
    if (!passes.parts[part].is_repaired) continue;
    result.repaired_shards.push_back(group_.own_shards().first +
                                     static_cast<int64_t>(part));
  }
  result.is_finite = std::isfinite(result.loss);
  result.is_too_high = result.is_finite && result.loss > options_.max_loss();
  if (exchange_) {
    group_.phases().reduce_s = passes.overlapped_wait_s + watch.restart();
  }

  enter(StepPhase::kUpdate);
  const double factor = batch.factor / loss_scale;
  outer.multiply(factor);
  if (!optimizer) {
    add_to_grad(reduction, std::move(outer), factor * gradient_factor_);
    if (!result.is_finite) {
      result.not_finite = first_not_finite(inputs, target, group_.original());
    }
    group_.phases().reduce_s += watch.restart();
  } else if (result.updates()) {
    update(reduction, std::move(outer), totals.needs_grad, factor, positions,
           *optimizer, result);
  } else if (!result.is_finite) {
    result.not_finite = first_not_finite(
        inputs, target, group_.original(),
        update_.first_not_finite(reduction, positions, *optimizer));
  }
  // Also drops gradients of parameters that the optimizer does not have.
  if (optimizer) group_.drop_gradients();
  if (exchange_) {
    const AllReduceSpan span(group_.rank(), "end of step");
    exchange_->end_step();
  }
  if (optimizer) end_casts(totals, passes);
  // Casts of the previous weights.
  if (has_autocast()) drop_cast_weights();
  group_.phases().update_s = watch.seconds();
  if (!result.is_finite) {
    warn_not_finite(group_, options_, result,
                    is_local() || reports_loss(group_, totals));
  }
  check_batch_weight(batch, options_);
  return result;
}

TrainStep::Passes TrainStep::compute_shards(const StepInput& step) {
  const Shards& shards = step.shards;
  const int64_t first_shard = group_.own_shards().first;
  Passes passes{
      .totals = {.samples = shards.batch,
                 .shards = std::vector<ShardLossTotal>(shards.samples.size())},
      .partials = std::vector<std::vector<PartialSum>>(group_.workers().size()),
      .parts = std::vector<ShardPass>(shards.parts.size())};
  const Checks checks = checks_of(step.loss);
  const CastWeights::State casts = group_.cast_weights().state();
  const bool tries_casts =
      step.can_cast && casts == CastWeights::State::kUntried;
  const bool scans_casts =
      step.can_cast && casts == CastWeights::State::kUnknown;
  std::optional<KeptTensors> buffers;
  if (checks.any() || tries_casts) buffers = kept_buffers(group_.original());
  std::unique_ptr<ModuleComparison> comparison;

  const auto compute =
      [&](size_t worker, size_t part, Replica& replica, const IValue& values,
          OverlappedSum* sum,
          std::optional<ModuleComparison::Extent> module_extent =
              std::nullopt) {
        const bool is_compared =
            module_extent ||
            (checks.module && comparison && part == comparison->part());
        return compute_shard({.step = step,
                              .worker = worker,
                              .shard = first_shard + static_cast<int64_t>(part),
                              .replica = replica,
                              .part = values,
                              .sum = sum,
                              .earlier = passes.partials[worker],
                              .keeps_output = is_compared || checks.loss,
                              .is_compared = is_compared,
                              .scans_casts = scans_casts && part == 0,
                              .module_extent = module_extent});
      };
  const ModuleComparison::Compute compute_with_module =
      [&](Replica& module, size_t part, ModuleComparison::Extent extent) {
        const IValue& own = shards.parts[part];
        const bool is_other =
            extent == ModuleComparison::Extent::kForwardOfOthers;
        return compute(
            0, part, module,
            is_other ? step.differentiable.with_other_samples(own, group_.dim())
                     : own,
            nullptr, extent);
      };
  follow_members(group_, shards.parts, shards.count(), group_.step_stream(),
                 compute_with_module);
  if (checks.module || tries_casts) {
    comparison =
        run_module_first(group_, *buffers, shards.parts, shards.count(),
                         group_.step_stream(), compute_with_module);
    group_.members().skip();
  }
  if (tries_casts && comparison) {
    passes.totals.can_cast = true;
    passes.totals.has_bad_casts = !try_casts(*comparison, shards.count());
    if (!checks.module) comparison.reset();
  }
  group_.for_each_shard(
      shards.count(), group_.step_stream(),
      [&](size_t worker, int64_t shard, Replica& replica) {
        const auto part = static_cast<size_t>(shard - first_shard);
        OverlappedSum* const sum =
            shard + 1 == group_.own_shards().last ? step.overlapped : nullptr;
        ShardPass& pass = passes.parts[part];
        if (options_.verify_gradients()) {
          pass = verified_pass(replica, [&] {
            return compute(worker, part, replica, copy_of(shards.parts[part]),
                           nullptr);
          });
        } else {
          pass = compute(worker, part, replica, shards.parts[part], sum);
        }
        if (comparison && part == comparison->part()) {
          comparison->compare(pass, replica);
        }
        if (!pass.cast_once.empty()) {
          passes.cast_once = std::move(pass.cast_once);
          passes.totals.can_cast = true;
        }
        passes.totals.shards[static_cast<size_t>(shard)] = {
            .loss = pass.seed == 0 ? 0 : pass.seed * pass.loss.item<double>(),
            .weight = pass.weight};
        pass.trial_gradients.reset();
        if (!checks.loss) {
          pass.output = IValue();
          pass.loss = Tensor();
        }
        const Stopwatch summing;
        std::vector<PartialSum>& partials = passes.partials[worker];
        if (sum) {
          sum->end_backward(pass.gradients.parameters);
          // It is summed with the earlier ones, unless that was already done.
          partials.push_back(
              {shard, shard + 1, std::move(pass.gradients.parameters)});
        } else {
          append_partial(
              partials,
              {shard, shard + 1, std::move(pass.gradients.parameters)},
              shards.count());
        }
        group_.phases_of(worker).backward_s += summing.seconds();
      });
  if (step.overlapped) {
    const TraceSpan span("wait", TraceCategory::kWait);
    const Stopwatch wait;
    step.overlapped->finish();
    passes.overlapped_wait_s = wait.seconds();
  }
  if (checks.any()) {
    make_checks(checks, step, passes.parts, comparison.get(), *buffers);
    for (ShardPass& pass : passes.parts) pass.output = IValue();
  }
  return passes;
}

OuterGradients TrainStep::outer_gradients(
    const DifferentiableInputs& differentiable, Passes& passes) const {
  std::vector<std::vector<Tensor>> leaves, input_gradients;
  std::vector<std::vector<OtherLeaf>> others;
  for (ShardPass& pass : passes.parts) {
    leaves.push_back(std::move(pass.input_leaves));
    input_gradients.push_back(std::move(pass.gradients.inputs));
    others.push_back(std::move(pass.gradients.others));
  }
  const std::vector<Tensor> gradients =
      differentiable.gather(input_gradients, leaves, group_.dim());
  OuterGradients outer;
  for (size_t i = 0; i < gradients.size(); ++i) {
    outer.add(differentiable.tensors()[i], gradients[i]);
  }
  if (exchange_) {
    refuse_foreign_leaves(std::move(others));
  } else {
    outer.add_sums(std::move(others));
  }
  return outer;
}

void TrainStep::add_to_grad(Reduction& reduction, OuterGradients outer,
                            double factor) {
  std::vector<Tensor> sums = update_.finish(reduction, SumsFor::kGradients);
  multiply(sums, factor);
  update_.accumulate(std::move(sums));
  std::move(outer).backward();
}

void TrainStep::update(Reduction& reduction, OuterGradients outer,
                       bool needs_grad, double factor,
                       const std::vector<size_t>& positions,
                       optim::Optimizer& optimizer, StepResult& result) {
  const double clip = options_.clip_grad_norm();
  const bool checks = options_.loss_scale() != 1;
  if (needs_grad) {
    add_to_grad(reduction, std::move(outer), factor);
    update_.update_whole(update_.take_grads(positions), positions, optimizer,
                         {.clip = clip, .checks = checks}, result);
  } else if (clip > 0 || checks) {
    update_.update_whole(
        update_.finish(reduction, SumsFor::kUpdate), positions, optimizer,
        {.clip = clip, .factor = factor, .checks = checks}, result);
  } else {
    update_.update(reduction, positions, optimizer, factor);
  }
}

ShardPass TrainStep::compute_shard(const ShardWork& work) const {
  const StepInput& step = work.step;
  const bool is_module = work.module_extent.has_value();
  ShardPass pass;
  const torch::AutoGradMode with_grad(true);
  work.replica.drop_gradients();
  const IValue chunk =
      step.differentiable.cut_from_graph(work.part, pass.input_leaves);
  const auto [arguments, target] = inputs_and_target(chunk);
  if (!is_module) enter(StepPhase::kForward);
  IValue output = is_module ? work.replica.forward(arguments)
                            : group_.forward_shard(work.worker, work.shard,
                                                   work.replica, arguments);
  if (is_module &&
      work.module_extent != ModuleComparison::Extent::kForwardAndBackward) {
    pass.output = detached(output);
    return pass;
  }
  Stopwatch phase;
  std::optional<TraceSpan> span(std::in_place, "loss", TraceCategory::kCompute,
                                work.shard);
  const WeightedLoss loss = step.loss(output, target);
  pass.weight = checked_weight(
      loss, step.shards.samples[static_cast<size_t>(work.shard)]);
  pass.states_weight = loss.weight.defined();
  pass.seed =
      loss_seed(pass.weight, step.shards.batch, options_.loss_reduction());
  pass.loss = loss.loss;
  if (work.keeps_output) pass.output = detached(output);
  ShardLeaves leaves{work.replica, group_.unique(), group_.parameters(),
                     pass.input_leaves};
  if (work.is_compared && pass.seed == 0) {
    pass.trial_gradients = trial_backward(output, leaves);
  }
  output = IValue();  // only the graph still holds it
  step.differentiable.pass_on_writes(work.part, chunk, group_.shards());
  // The backward computes in the types that the forward used.
  const NoAutocast no_autocast;
  span.emplace("backward", TraceCategory::kCompute, work.shard);
  if (!is_module) {
    enter(StepPhase::kBackward);
    group_.phases_of(work.worker).forward_s += phase.restart();
  }
  if (work.scans_casts) pass.cast_once = are_cast_once(pass.loss, work.replica);
  if (work.is_compared) pass.gradient_sums.resize(group_.parameters().size());
  // The replica may have the parameter in a smaller type than the module.
  const auto note_sum = [&](size_t p, const Tensor& gradient) {
    pass.gradient_sums[p] =
        checksum_of(gradient.to(group_.parameters()[p].scalar_type()));
  };
  if (work.sum) {
    work.sum->begin(work.earlier);
    leaves.on_gradient = [&](size_t p, const Tensor& leaf) {
      // Must be computed before the sum takes the gradient.
      if (work.is_compared) note_sum(p, leaf.grad());
      work.sum->add(p, leaf);
    };
  } else if (is_module && group_.options().zero() == ZeroStage::kGradients) {
    // This rank must not hold all gradients at once.
    leaves.on_gradient = [&](size_t p, const Tensor& leaf) {
      note_sum(p, leaf.grad());
      leaf.mutable_grad().reset();
    };
  }
  // A shard that does not contribute to the batch's loss has no backward: its
  // loss may be NaN, and 0 times NaN would be NaN.
  const Tensor seed =
      pass.seed == 0 ? Tensor()
                     : torch::full_like(pass.loss, pass.seed * step.loss_scale);
  pass.gradients =
      shard_backward({pass.loss}, {seed}, /*keep_graph=*/false, leaves);
  for (size_t p = 0; p < pass.gradient_sums.size(); ++p) {
    const Tensor& gradient = pass.compared_gradients().parameters[p].tensor();
    if (gradient.defined()) note_sum(p, gradient);
  }
  pass.loss = pass.loss.detach();
  if (!is_module) {
    group_.phases_of(work.worker).backward_s += phase.seconds();
  }
  return pass;
}

// Copies of parameters in the type of autocast.

bool TrainStep::can_use_casts(const optim::Optimizer* optimizer,
                              const std::vector<size_t>& positions) const {
  const DataParallelOptions& group_options = group_.options();
  const auto workers = static_cast<int64_t>(group_.workers().size()) *
                       group_options.process_group().size();
  // With several shards on a worker, sums would have to go back to memory in
  // float.
  return optimizer && autocast_type(c10::kCPU) == CastWeights::kType &&
         group_.cast_weights().state() != CastWeights::State::kOff &&
         group_.devices().front().is_cpu() && group_.shards() == workers &&
         group_options.replication() == Replication::kResident &&
         (!exchange_ || exchange_->shares_memory()) && !local_gradients_ &&
         !options_.verify_gradients() && !update_.needs_grad(positions);
}

void TrainStep::refresh_casts(const optim::Optimizer* optimizer) {
  CastWeights& casts = group_.cast_weights();
  if (!optimizer || !casts.exist()) return;
  if (!casts.fit(group_.parameters())) return casts.reset();
  // Ranks that share memory have to write them at the same time, which they do
  // when they share the parameters. They refuse other changes of a parameter.
  const bool are_outdated =
      exchange_ ? !casts.are_valid() : casts.are_outdated(group_.parameters());
  if (are_outdated) update_.write_casts();
  update_.keep_casts();
}

std::vector<bool> TrainStep::are_cast_once(const Tensor& loss,
                                           const Replica& replica) const {
  const auto& leaves = replica.module().parameters;
  std::vector<Tensor> leaf_of(group_.parameters().size());
  std::vector<int> names(leaf_of.size());
  for (size_t i = 0; i < leaves.size(); ++i) {
    leaf_of[group_.unique()[i]] = leaves[i].second;
    ++names[group_.unique()[i]];
  }
  std::vector<bool> cast_once = lockstep::are_cast_once({loss}, leaf_of);
  for (size_t p = 0; p < names.size(); ++p) {
    // A replica may have one leaf for each name.
    if (names[p] > 1) cast_once[p] = false;
  }
  return cast_once;
}

bool TrainStep::try_casts(ModuleComparison& comparison, int64_t chunks) {
  const int64_t shard =
      group_.own_shards().first + static_cast<int64_t>(comparison.part());
  bool has_same_bits = false;
  // begin() would make other replicas.
  if (comparison.registers_in_forward()) return false;
  group_.begin(chunks, /*uses_casts=*/true);
  group_.on_shard(shard, chunks, group_.step_stream(), [&](Replica& replica) {
    group_.load_replica(shard, replica);
    has_same_bits = comparison.has_bits_of(replica);
  });
  group_.begin(chunks, /*uses_casts=*/has_same_bits);
  return has_same_bits;
}

void TrainStep::end_casts(const StepTotals& totals, const Passes& passes) {
  CastWeights& casts = group_.cast_weights();
  if (!totals.can_cast) return;
  if (casts.state() == CastWeights::State::kUntried) {
    return totals.has_bad_casts ? casts.turn_off() : casts.note_tried();
  }
  if (casts.state() != CastWeights::State::kUnknown ||
      passes.cast_once.size() != group_.parameters().size()) {
    return;
  }
  const ProcessGroup world = checking_ranks();
  std::string own;
  for (const bool is_cast : passes.cast_once) own += is_cast ? '1' : '0';
  if (world.size() > 1) {
    for (const std::string& other : world.all_gather_text(own)) {
      if (other != own) return casts.turn_off();
    }
  }
  casts.make(group_.parameters(), passes.cast_once, [&](const Tensor& like) {
    return exchange_ ? exchange_->make_state(like) : torch::empty_like(like);
  });
  if (casts.exist() && first_step().module() == StepCheck::kOff) {
    casts.note_tried();
  }
}

TrainStep::Checks TrainStep::checks_of(const ShardLoss& loss) const {
  const FirstStep& first = first_step();
  // With one shard, the shard is the whole batch.
  return {.module = first.compares_module(group_.build(),
                                          /*has_gradients=*/true),
          .loss = group_.shards() > 1 && first.compares_loss(loss)};
}

void TrainStep::check_loss(const StepInput& step,
                           const std::vector<ShardPass>& parts,
                           FirstStep::Findings& findings) const {
  const Shards& shards = step.shards;
  const int64_t own = group_.own_shards().first;
  const auto in_first_shard = [&](const auto& check) {
    group_.on_shard(
        own, shards.count(), group_.step_stream(), [&](Replica& replica) {
          const TraceSpan span("check loss", TraceCategory::kCompute);
          const IValue first_target =
              detached(inputs_and_target(shards.parts.front()).second);
          const auto samples =
              std::span(shards.samples)
                  .subspan(static_cast<size_t>(own), parts.size());
          check(ComputedShards{.loss = step.loss,
                               .reduction = options_.loss_reduction(),
                               .dim = group_.dim(),
                               .replica = replica,
                               .inputs = step.inputs,
                               .target = step.target,
                               .first_target = first_target,
                               .passes = parts,
                               .samples = samples});
        });
  };
  std::optional<IValue> sample;
  if (!findings.problem) {
    in_first_shard([&](const ComputedShards& own_shards) {
      sample = check_loss_is_mean(own_shards, findings);
    });
  }
  const ProcessGroup world = checking_ranks();
  if (world.size() == 1) return;
  if (findings.problem) sample.reset();
  const auto per_rank = gather_samples(world, sample, findings);
  if (per_rank.empty()) return;
  in_first_shard([&](const ComputedShards& own_shards) {
    check_loss_over_ranks(own_shards, per_rank, findings);
  });
}

void TrainStep::make_checks(const Checks& checks, const StepInput& step,
                            const std::vector<ShardPass>& parts,
                            ModuleComparison* comparison,
                            const KeptTensors& buffers) {
  FirstStep::Findings findings;
  if (checks.module) {
    findings = settle(group_, checking_ranks(), comparison, step.shards.count(),
                      group_.step_stream());
  }
  if (checks.loss) check_loss(step, parts, findings);
  agree_or_refuse(checking_ranks(), findings, buffers);
  FirstStep& first = first_step();
  if (checks.module) {
    first.note_module(findings.module, group_.build(), /*has_gradients=*/true);
  }
  if (checks.loss) first.note_loss(findings.loss, step.loss);
}

std::vector<int64_t> TrainStep::evaluate(const std::vector<IValue>& inputs,
                                         const IValue& target,
                                         const ShardVisit& visit) {
  const torch::NoGradGuard no_grad;
  const IValue all = tuple_of(inputs, target);
  const DifferentiableInputs whole(all, /*needs_graph=*/false);
  const Shards shards = cut(all, /*trains=*/false);
  group_.follow_members_in_evaluation();
  group_.begin(shards.count());
  group_.for_each_shard(
      shards.count(), group_.forward_stream(/*trains=*/false),
      [&](size_t worker, int64_t shard, Replica& replica) {
        const IValue& part =
            shards
                .parts[static_cast<size_t>(shard - group_.own_shards().first)];
        std::vector<Tensor> no_leaves;
        const IValue chunk = whole.cut_from_graph(part, no_leaves);
        const auto [arguments, shard_target] = inputs_and_target(chunk);
        visit(group_.forward_shard(worker, shard, replica, arguments),
              shard_target);
        whole.pass_on_writes(part, chunk, group_.shards());
      });
  group_.collect_phases();
  group_.finish_buffers(shards.count());
  return shards.samples;
}

TrainStep::Shards TrainStep::cut(const IValue& all, bool trains) const {
  Shards shards;
  const ProcessGroup& world = group_.options().process_group();
  const int64_t batch = options_.total_samples();
  if (world.size() == 1) {
    shards.parts = group_.scatter_checked(all, trains);
    shards.batch = batch_size_of(all, group_.dim()).value_or(0);
    shards.samples = chunk_sizes(shards.batch, group_.shards());
    shards.own = shards.batch;
    // Without a tensor to split, all shards have an equal part in the step.
    shards.samples.resize(shards.parts.size());
    return shards;
  }
  shards.own = batch_size_of(all, group_.dim()).value_or(0);
  shards.batch = batch >= 0 ? batch : shards.own * world.size();
  shards.samples = chunk_sizes(shards.batch, group_.shards());
  const int64_t expected =
      samples_of(group_.own_shards(), shards.batch, group_.shards()).count();
  if (shards.own != expected) {
    throw ParallelError(
        "ddp",
        {.code = ErrorCode::kSamplesDiffer,
         .what = fmt::format("rank {} got another part of the batch than its "
                             "own",
                             world.rank()),
         .expected =
             fmt::format("{} of {}", expected, counted(shards.batch, "sample")),
         .got = fmt::format("{}", shards.own),
         .fix = "cut the batch in chunks of ceil(samples / shards), as "
                "data::Loader does with `part`"});
  }
  torch::NoGradGuard no_grad;
  const int64_t chunks = shards.count();
  shards.parts = group_.cut(
      all,
      {shards.samples.begin() + std::min(group_.own_shards().first, chunks),
       shards.samples.begin() + std::min(group_.own_shards().last, chunks)});
  return shards;
}

std::vector<PartialSum> TrainStep::partials_of_rank(
    std::vector<std::vector<PartialSum>> partials, const Shards& shards,
    double loss_scale) {
  std::vector<PartialSum> all = join_partials(std::move(partials));
  if (!local_gradients_) return all;
  if (all.empty()) {
    throw ParallelError(
        "ddp", {.code = ErrorCode::kSamplesDiffer,
                .what = fmt::format("rank {} has no samples in the step that "
                                    "ends no_sync()",
                                    group_.rank()),
                .expected = "a batch with samples for every rank",
                .fix = "leave out such a batch (drop_last)"});
  }
  const torch::NoGradGuard no_grad;
  const auto batch = static_cast<double>(std::max<int64_t>(shards.batch, 1));
  // The sums will be divided by the loss scale, and by total_weight, as the
  // local gradients were.
  const double factor =
      loss_scale *
      (options_.total_weight() > 0 ? options_.total_weight() / batch : 1);
  const double weight = weights_by_samples_
                            ? static_cast<double>(shards.own) / batch
                            : 1.0 / group_.options().process_group().size();
  std::vector<Tensor> shares =
      local_gradients_->take_shares(group_.parameters(), weight);
  for (size_t p = 0; p < shares.size(); ++p) {
    if (!shares[p].defined()) continue;
    Tensor local = std::move(shares[p]);
    if (factor != 1) local = local * factor;
    OwnedGradient& gradient = all.back().gradients[p];
    if (gradient.defined()) {
      gradient.tensor().add_(local);
    } else {
      gradient = OwnedGradient::take(std::move(local), group_.parameters()[p]);
    }
  }
  return all;
}

Reduction TrainStep::reduce(std::vector<PartialSum> partials, int64_t chunks,
                            StepTotals& totals) const {
  if (exchange_) {
    const AllReduceSpan span(group_.rank(), "all-reduce");
    return exchange_->reduce(std::move(partials), chunks, totals);
  }
  // Only this rank's sums are added, which may belong to several nodes of the
  // tree.
  if (is_local()) merge_partials(partials);
  Reduction reduction(std::move(partials), chunks, group_.parameters());
  for (const Device& device : group_.devices()) {
    // If a copy of a gradient has failed, the step must not update.
    accelerator::synchronize(device);
  }
  return reduction;
}

}  // namespace lockstep
