#include "lockstep/parallel/step/train_step.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include <c10/util/ScopeExit.h>
#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/trace.h"
#include "lockstep/device/accelerator.h"
#include "lockstep/device/autocast.h"
#include "lockstep/parallel/module/nested.h"
#include "lockstep/parallel/step/not_finite_report.h"
#include "lockstep/parallel/step/verified_pass.h"

namespace lockstep {

using c10::IValue;
using torch::Tensor;
using Phase = StepClock::Phase;

namespace {

void multiply(std::vector<Tensor>& gradients, double factor) {
  if (factor == 1) return;
  const torch::NoGradGuard no_grad;
  for (Tensor& gradient : gradients) {
    if (gradient.defined()) gradient.mul_(factor);
  }
}

std::string first_not_finite_in(const StepBatch& batch,
                                const ReplicaGroup& group,
                                const std::string& gradient = "") {
  const auto [arguments, target] = arguments_and_target(batch.all);
  return first_not_finite(arguments, target, group.original(), gradient);
}

}  // namespace

TrainStep::TrainStep(ReplicaGroup& group, RankExchange* exchange,
                     StepAttachments attachments,
                     const TrainStepOptions& options,
                     optim::BlockOptimizer* optimizer)
    : group_(group),
      clock_(group.clock()),
      exchange_(exchange),
      attachments_(attachments),
      options_(options),
      optimizer_(optimizer),
      update_(group, exchange, attachments),
      loss_scale_(optimizer ? options.loss_scale() : 1) {
  check_reduction(options);
  if (optimizer) positions_ = update_.positions_in(*optimizer);
}

StepResult TrainStep::run(const std::vector<IValue>& inputs,
                          const IValue& target, const ShardLoss& loss) {
  const StepBatch batch = begin(inputs, target);
  const StepContext context{
      .group = group_,
      .ranks = is_local() ? ProcessGroup() : group_.options().process_group(),
      .exchange = exchange_,
      .update = update_,
      .batch = batch,
      .loss = loss,
      .options = options_,
      .optimizer = optimizer_,
      .updates_in_blocks = [&] {
        return optimizer_ && !add_gradients_ && !options_.verify_gradients() &&
               !update_.needs_grad(positions_);
      }};
  for (const auto& each : attachments_) each->before_step(context);

  StepSum* const overlapped = step_sum(batch);
  // If the step throws, other ranks must not wait for this one in the sums that
  // it has begun. Does nothing after finish().
  const auto abandons = c10::make_scope_exit([&] {
    if (overlapped) overlapped->abandon();
  });
  Passes passes(batch, group_.workers().size());
  group_.for_each_shard(
      batch.shards(), group_.step_stream(),
      [&](size_t worker, int64_t index, Replica& replica) {
        const bool is_last = index + 1 == group_.own_shards().last;
        StepSum* const sum = is_last ? overlapped : nullptr;
        Shard shard(group_, batch, worker, index, replica);
        ShardPass pass = compute(shard, loss, sum, passes.partials[worker]);
        const auto span = clock_.time_shard(Phase::kBackward, worker, index);
        passes.add(batch, worker, index, std::move(pass), sum);
      });
  wait_for_sums(overlapped);
  group_.finish_buffers(batch.shards());
  group_.count_step();

  OuterGradients outer = take_outer_gradients(batch, passes.parts, group_.dim(),
                                              /*is_alone=*/!exchange_);
  Sums sums = reduce(batch, passes, outer);
  const BatchLoss mean = batch_loss(sums.totals, options_, is_local());
  StepResult result = result_of(mean, batch, passes.parts);
  apply(sums, std::move(outer), mean, batch, result);
  if (!result.is_finite) {
    warn_not_finite(group_, options_, result,
                    is_local() || reports_loss(group_, sums.totals));
  }
  check_batch_weight(mean, options_);
  return result;
}

StepBatch TrainStep::begin(const std::vector<IValue>& inputs,
                           const IValue& target) {
  clock_.restart();
  const auto span = clock_.time(Phase::kScatter, "scatter");
  StepBatch batch = cut_batch(group_, inputs, target, options_.total_samples(),
                              /*needs_graph=*/true);
  if (exchange_) {
    batch.differentiable.check_none_is_shared();
    exchange_->load_buffers();
  }
  group_.begin(batch.shards());
  return batch;
}

StepSum* TrainStep::step_sum(const StepBatch& batch) const {
  // Verified gradients, and those to which others are added, are not known
  // before the backward ends.
  if (!exchange_ || add_gradients_ || options_.verify_gradients()) {
    return nullptr;
  }
  return exchange_->step_sum(batch.shards());
}

ShardPass TrainStep::compute(Shard& shard, const ShardLoss& loss, StepSum* sum,
                             const std::vector<PartialSum>& earlier) const {
  const torch::AutoGradMode with_grad(true);
  if (options_.verify_gradients()) {
    return verified_pass(shard.replica(), [&] {
      // A forward may write to its inputs. The writes stay in the copies.
      shard.forward(cloned(shard.part()));
      shard.compute_loss(loss, options_.loss_reduction());
      return shard.backward(loss_scale_);
    });
  }
  shard.forward(shard.part());
  shard.compute_loss(loss, options_.loss_reduction());
  if (!sum) return shard.backward(loss_scale_);
  sum->begin(earlier);
  return shard.backward(
      loss_scale_, [&](size_t p, const Tensor& leaf) { sum->add(p, leaf); });
}

void TrainStep::Passes::add(const StepBatch& batch, size_t worker,
                            int64_t index, ShardPass pass, StepSum* sum) {
  PartialSum own{index, index + 1, std::move(pass.gradients.parameters)};
  if (sum) {
    // It is summed with the earlier ones, unless that was already done.
    sum->end_backward(own.gradients);
    partials[worker].push_back(std::move(own));
  } else {
    append_partial(partials[worker], std::move(own), batch.shards());
  }
  parts[batch.part_of(index)] = std::move(pass);
}

void TrainStep::wait_for_sums(StepSum* overlapped) {
  if (!overlapped) return;
  const TraceSpan wait("wait", TraceCategory::kWait);
  const auto span = clock_.time(Phase::kReduce);
  overlapped->finish();
}

TrainStep::Sums TrainStep::reduce(const StepBatch& batch, Passes& passes,
                                  const OuterGradients& outer) {
  const bool is_apart = exchange_ || !optimizer_;
  const auto span = clock_.time(is_apart ? Phase::kReduce : Phase::kUpdate);
  StepTotals totals{
      .samples = batch.samples,
      .shards = std::vector<ShardLossTotal>(batch.shard_samples.size())};
  bool has_weights = false;
  for (size_t part = 0; part < passes.parts.size(); ++part) {
    const ShardPass& pass = passes.parts[part];
    totals.shards[batch.first_shard + part] = {
        .loss = pass.seed == 0 ? 0 : pass.seed * pass.loss.item<double>(),
        .weight = pass.weight};
    has_weights = has_weights || pass.states_weight;
  }
  if (has_weights && (is_local() || add_gradients_)) {
    check_has_total_weight(options_);
  }
  totals.needs_grad =
      optimizer_ && (!outer.empty() || update_.needs_grad(positions_));
  CommonState::Contents state;
  if (exchange_ && group_.options().verify_ranks()) {
    state = update_.common_state(optimizer_, positions_);
    totals.state = exchange_->common_state().next(state);
  }
  clock_.enter(StepPhase::kAllReduce);
  Reduction gradients = combine(
      partials_of_rank(std::move(passes.partials), batch), batch, totals);
  if (totals.has_other_state) {
    exchange_->common_state().explain(state, group_.options().process_group());
  }
  return {std::move(gradients), std::move(totals)};
}

StepResult TrainStep::result_of(const BatchLoss& mean, const StepBatch& batch,
                                const std::vector<ShardPass>& parts) const {
  StepResult result{.loss = mean.loss,
                    .samples = batch.samples,
                    .weight = mean.weight,
                    .is_finite = std::isfinite(mean.loss),
                    .is_empty = mean.is_empty};
  result.is_too_high = result.is_finite && result.loss > options_.max_loss();
  for (size_t part = 0; part < parts.size(); ++part) {
    if (!parts[part].is_repaired) continue;
    result.repaired_shards.push_back(
        static_cast<int64_t>(batch.first_shard + part));
  }
  return result;
}

void TrainStep::apply(Sums& sums, OuterGradients outer, const BatchLoss& mean,
                      const StepBatch& batch, StepResult& result) {
  clock_.enter(StepPhase::kUpdate);
  // Without an optimizer, sums that are added to .grad are not an update.
  const auto span = clock_.time(optimizer_ ? Phase::kUpdate : Phase::kReduce);
  const double factor = mean.factor / loss_scale_;
  outer.multiply(factor);
  if (!optimizer_) {
    add_to_grad(sums.gradients, std::move(outer), factor * gradient_factor_);
    if (!result.is_finite) {
      result.not_finite = first_not_finite_in(batch, group_);
    }
  } else if (result.updates()) {
    update(sums.gradients, std::move(outer), sums.totals.needs_grad, factor,
           result);
  } else if (!result.is_finite) {
    result.not_finite = first_not_finite_in(
        batch, group_,
        update_.first_not_finite(sums.gradients, positions_, *optimizer_));
  }
  // Also drops gradients of parameters that the optimizer does not have.
  if (optimizer_) group_.drop_gradients();
  if (exchange_) {
    const AllReduceSpan end(group_.rank(), "end of step");
    exchange_->end_step();
  }
  // Casts of the previous weights.
  if (has_autocast()) drop_cast_weights();
}

void TrainStep::add_to_grad(Reduction& reduction, OuterGradients outer,
                            double factor) {
  std::vector<Tensor> sums = update_.finish(reduction, SumsFor::kGradients);
  multiply(sums, factor);
  update_.accumulate(std::move(sums));
  std::move(outer).backward();
}

void TrainStep::update(Reduction& reduction, OuterGradients outer,
                       bool needs_grad, double factor, StepResult& result) {
  const double clip = options_.clip_grad_norm();
  const bool checks = options_.loss_scale() != 1;
  if (needs_grad) {
    add_to_grad(reduction, std::move(outer), factor);
    update_.update_whole(update_.take_grads(positions_), positions_,
                         *optimizer_, {.clip = clip, .checks = checks}, result);
  } else if (clip > 0 || checks) {
    update_.update_whole(
        update_.finish(reduction, SumsFor::kUpdate), positions_, *optimizer_,
        {.clip = clip, .factor = factor, .checks = checks}, result);
  } else {
    update_.update(reduction, positions_, *optimizer_, factor);
  }
}

std::vector<PartialSum> TrainStep::partials_of_rank(
    std::vector<std::vector<PartialSum>> partials,
    const StepBatch& batch) const {
  std::vector<PartialSum> all = join_partials(std::move(partials));
  if (!add_gradients_) return all;
  // The sums will be divided by the loss scale. With total_weight, they are
  // sums over the weights instead of the samples.
  const auto samples = static_cast<double>(std::max<int64_t>(batch.samples, 1));
  const double factor =
      loss_scale_ *
      (options_.total_weight() > 0 ? options_.total_weight() / samples : 1);
  add_gradients_(batch, factor, all);
  return all;
}

Reduction TrainStep::combine(std::vector<PartialSum> partials,
                             const StepBatch& batch, StepTotals& totals) const {
  if (exchange_) {
    const AllReduceSpan span(group_.rank(), "all-reduce");
    return exchange_->reduce(std::move(partials), batch.shards(), totals);
  }
  // Only this rank's sums are added, which may belong to several nodes of the
  // tree.
  if (is_local()) merge_partials(partials);
  Reduction reduction(std::move(partials), batch.shards(), group_.parameters());
  for (const Device& device : group_.devices()) {
    // If a copy of a gradient has failed, the step must not update.
    accelerator::synchronize(device);
  }
  return reduction;
}

}  // namespace lockstep
