#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>

#include <fmt/format.h>
#include <torch/csrc/autograd/engine.h>

#include "lockstep/base/chunk.h"
#include "lockstep/base/error.h"
#include "lockstep/base/stopwatch.h"
#include "lockstep/base/trace.h"
#include "lockstep/comm/agent/link.h"
#include "lockstep/parallel/nested.h"
#include "lockstep/parallel/replica_group.h"
#include "lockstep/parallel/scatter_gather.h"

namespace lockstep {

using c10::IValue;
using torch::Tensor;

namespace {

void check_loss(const Tensor& loss) {
  if (loss.defined() && loss.numel() == 1 && loss.requires_grad()) return;
  throw InvalidArgument(
      "parallel",
      {.what = "the loss function returned something else than a loss",
       .expected = "a scalar tensor that depends on the parameters",
       .got = !loss.defined()     ? "an undefined tensor"
              : loss.numel() != 1 ? "shape " + c10::str(loss.sizes())
                                  : "a tensor without a graph",
       .fix = "reduce it (mean) and don't detach it"});
}

int64_t batch_of(const IValue& value, int64_t dim) {
  int64_t samples = -1;
  for_each_tensor(value, [&](const Tensor& tensor, const std::string&) {
    if (samples < 0) samples = tensor.size(dim);
  });
  return std::max<int64_t>(samples, 0);
}

}  // namespace

StepResult ReplicaGroup::train_step(const std::vector<IValue>& inputs,
                                    const IValue& target, const ShardLoss& loss,
                                    optim::Optimizer* optimizer,
                                    double clip_grad_norm, int64_t batch) {
  Stopwatch watch;
  std::optional<TraceSpan> scatter_span(std::in_place, "scatter",
                                        TraceCategory::kCompute);
  const StepShards shards = cut(inputs, target, batch);
  const auto chunks = static_cast<int64_t>(shards.samples.size());
  begin(chunks);
  const double scatter_s = watch.restart();
  scatter_span.reset();

  StepTotals totals{.samples = shards.batch,
                    .losses = std::vector<double>(shards.samples.size())};
  std::vector<std::vector<PartialSum>> partials(workers_.size());
  for_each_shard(chunks, [&](size_t worker, int64_t shard, Replica& replica) {
    const auto s = static_cast<size_t>(shard);
    const torch::AutoGradMode with_grad(true);
    std::vector<IValue> own =
        shards.parts[static_cast<size_t>(shard - own_shards_.first)]
            .toTupleRef()
            .elements()
            .vec();
    const IValue own_target = std::move(own.back());
    own.pop_back();
    agent::enter(agent::Phase::kForward);
    const IValue output = forward_shard(worker, shard, replica, own);
    Stopwatch phase;
    std::optional<TraceSpan> span(std::in_place, "loss",
                                  TraceCategory::kCompute, shard);
    const Tensor shard_loss = loss(output, own_target);
    check_loss(shard_loss);
    span.emplace("backward", TraceCategory::kCompute, shard);
    agent::enter(agent::Phase::kBackward);
    worker_phases_[worker].forward_s += phase.restart();
    // The weight enters as the gradient of the loss: an uneven split gives
    // the gradient of the whole batch's mean.
    const double weight = shards.batch == 0
                              ? 1.0
                              : static_cast<double>(shards.samples[s]) /
                                    static_cast<double>(shards.batch);
    torch::autograd::Engine::get_default_engine().execute(
        {torch::autograd::impl::gradient_edge(shard_loss)},
        {torch::full_like(shard_loss, weight)}, /*keep_graph=*/false,
        /*create_graph=*/false, /*accumulate_grad=*/true);
    totals.losses[s] = weight * shard_loss.item<double>();
    append_partial(
        partials[worker],
        {shard, shard + 1, replica.take_gradients(unique_, parameters_.size())},
        chunks);
    worker_phases_[worker].backward_s += phase.seconds();
  });
  collect_phases();
  phases_.scatter_s = scatter_s;
  finish_buffers(chunks);
  ++step_;

  watch.restart();
  agent::enter(agent::Phase::kAllReduce);
  Reduction reduction = reduction_of(std::move(partials), chunks, totals);
  StepResult result{.samples = shards.batch};
  for (const double shard_loss : totals.losses) result.loss += shard_loss;
  result.is_finite = std::isfinite(result.loss);
  if (exchange_) phases_.reduce_s = watch.restart();
  agent::enter(agent::Phase::kUpdate);
  if (!optimizer || !result.is_finite) {
    accumulate(finish(reduction));
    phases_.reduce_s += watch.restart();
  } else if (clip_grad_norm > 0) {
    result.gradient_norm =
        update_clipped(reduction, *optimizer, clip_grad_norm);
    result.is_finite = std::isfinite(result.gradient_norm);
  } else {
    update(reduction, *optimizer);
  }
  if (exchange_) {
    const AllReduceSpan span(rank(), "end of step");
    exchange_->end_step();
  }
  phases_.update_s = watch.seconds();
  return result;
}

ReplicaGroup::StepShards ReplicaGroup::cut(const std::vector<IValue>& inputs,
                                           const IValue& target,
                                           int64_t batch) {
  std::vector<IValue> everything = inputs;
  everything.push_back(target);
  const IValue all = c10::ivalue::Tuple::create(everything);
  StepShards shards;
  if (!exchange_) {
    shards.parts = scatter_checked(all, true);
    for (const IValue& part : shards.parts) {
      shards.samples.push_back(batch_of(part, options_.dim()));
      shards.batch += shards.samples.back();
    }
    return shards;
  }
  const int64_t own = batch_of(all, options_.dim());
  shards.batch = batch >= 0 ? batch : own * options_.world().size();
  shards.samples = chunk_sizes(shards.batch, shards_);
  const int64_t expected =
      samples_of(own_shards_, shards.batch, shards_).count();
  if (own != expected) {
    throw InvalidArgument(
        "ddp",
        {.what = fmt::format("rank {} got another part of the batch than its "
                             "own",
                             options_.world().rank()),
         .expected = fmt::format("{} of {} samples", expected, shards.batch),
         .got = fmt::format("{}", own),
         .fix = "cut the batch in chunks of ceil(samples / shards), as "
                "data::Loader does with `part`"});
  }
  torch::NoGradGuard no_grad;
  const auto chunks = static_cast<int64_t>(shards.samples.size());
  shards.parts = cut_own(
      all, {shards.samples.begin() + std::min(own_shards_.first, chunks),
            shards.samples.begin() + std::min(own_shards_.last, chunks)});
  return shards;
}

Reduction ReplicaGroup::reduction_of(
    std::vector<std::vector<PartialSum>> partials, int64_t chunks,
    StepTotals& totals) const {
  std::vector<PartialSum> all;
  for (auto& of_worker : partials) {
    std::move(of_worker.begin(), of_worker.end(), std::back_inserter(all));
  }
  if (exchange_) {
    const AllReduceSpan span(rank(), "all-reduce");
    return exchange_->reduce(std::move(all), chunks, totals);
  }
  return Reduction(std::move(all), chunks, parameters_);
}

}  // namespace lockstep
