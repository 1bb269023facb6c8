#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>

#include <fmt/format.h>

#include "lockstep/base/chunk.h"
#include "lockstep/base/error.h"
#include "lockstep/base/stopwatch.h"
#include "lockstep/base/trace.h"
#include "lockstep/parallel/exchange/overlapped_sum.h"
#include "lockstep/parallel/module/nested.h"
#include "lockstep/parallel/module/scatter_gather.h"
#include "lockstep/parallel/replicas/outer_gradients.h"
#include "lockstep/parallel/replicas/replica_group.h"
#include "lockstep/parallel/replicas/shard_backward.h"

namespace lockstep {

using c10::IValue;
using torch::Tensor;

namespace {

void check_loss(const Tensor& loss) {
  if (loss.defined() && loss.numel() == 1 && loss.requires_grad()) return;
  throw InvalidArgument(
      "parallel",
      {.code = ErrorCode::kBadLoss,
       .what = "the loss function returned something else than a loss",
       .expected = "a scalar tensor that depends on the parameters",
       .got = !loss.defined()     ? "an undefined tensor"
              : loss.numel() != 1 ? "shape " + c10::str(loss.sizes())
                                  : "a tensor without a graph",
       .fix = "reduce it (mean) and don't detach it"});
}

/// A leaf outside of the module has one gradient for each rank.
void check_one_rank(const std::vector<std::vector<OtherLeaf>>& others) {
  for (const auto& of_shard : others) {
    if (of_shard.empty()) continue;
    throw InvalidArgument(
        "ddp",
        {.code = ErrorCode::kForeignLeaf,
         .what = "the loss depends on a tensor of shape " +
                 c10::str(of_shard[0].leaf.sizes()) +
                 " that requires grad and is no parameter of the module, so "
                 "each rank would train one of its own",
         .fix = "register it in the module, or detach it"});
  }
}

int64_t batch_of(const IValue& value, int64_t dim) {
  int64_t samples = -1;
  for_each_tensor(value, [&](const Tensor& tensor, const std::string&) {
    if (samples < 0) samples = tensor.size(dim);
  });
  return std::max<int64_t>(samples, 0);
}

/// Of a step that fails in between: the other ranks' sums go on.
class Abandoning {
 public:
  explicit Abandoning(OverlappedSum* sum) : sum_(sum) {}
  ~Abandoning() {
    if (sum_) sum_->abandon();
  }
  Abandoning(const Abandoning&) = delete;
  Abandoning& operator=(const Abandoning&) = delete;

 private:
  OverlappedSum* sum_;
};

}  // namespace

StepResult ReplicaGroup::train_step(const std::vector<IValue>& inputs,
                                    const IValue& target, const ShardLoss& loss,
                                    optim::Optimizer* optimizer,
                                    const TrainStepOptions& options) {
  begin_step(optimizer);
  Stopwatch watch;
  std::optional<TraceSpan> scatter_span(std::in_place, "scatter",
                                        TraceCategory::kCompute);
  // What the loss sees of the caller's graph.
  std::vector<IValue> everything = inputs;
  everything.push_back(target);
  const IValue all = c10::ivalue::Tuple::create(everything);
  const DifferentiableInputs differentiable(all);
  const StepShards shards = cut(all, options.batch());
  const auto chunks = static_cast<int64_t>(shards.samples.size());
  begin(chunks);
  const std::vector<size_t> positions =
      optimizer ? positions_in(*optimizer) : std::vector<size_t>();
  const double scatter_s = watch.restart();
  scatter_span.reset();

  StepTotals totals{.samples = shards.batch,
                    .losses = std::vector<double>(shards.samples.size())};
  std::vector<std::vector<PartialSum>> partials(workers_.size());
  std::vector<std::vector<Tensor>> leaves(shards.parts.size());
  std::vector<std::vector<Tensor>> chunk_gradients(shards.parts.size());
  std::vector<std::vector<OtherLeaf>> others(shards.parts.size());
  OverlappedSum* const overlapped =
      exchange_ ? exchange_->overlapped_sum(chunks) : nullptr;
  const Abandoning abandoning(overlapped);
  for_each_shard(chunks, [&](size_t worker, int64_t shard, Replica& replica) {
    const auto s = static_cast<size_t>(shard);
    const auto part = static_cast<size_t>(shard - own_shards_.first);
    const torch::AutoGradMode with_grad(true);
    replica.drop_gradients();
    const IValue chunk =
        differentiable.cut_from_graph(shards.parts[part], leaves[part]);
    std::vector<IValue> arguments = chunk.toTupleRef().elements().vec();
    const IValue shard_target = std::move(arguments.back());
    arguments.pop_back();
    enter(StepPhase::kForward);
    IValue output = forward_shard(worker, shard, replica, arguments);
    Stopwatch phase;
    std::optional<TraceSpan> span(std::in_place, "loss",
                                  TraceCategory::kCompute, shard);
    const Tensor shard_loss = loss(output, shard_target);
    check_loss(shard_loss);
    output = IValue();  // only the graph holds on to it
    DifferentiableInputs::pass_on_writes(shards.parts[part], chunk);
    span.emplace("backward", TraceCategory::kCompute, shard);
    enter(StepPhase::kBackward);
    worker_phases_[worker].forward_s += phase.restart();
    // The weight enters as the gradient of the loss: an uneven split gives
    // the gradient of the whole batch's mean.
    const double weight = shards.batch == 0
                              ? 1.0
                              : static_cast<double>(shards.samples[s]) /
                                    static_cast<double>(shards.batch);
    ShardLeaves shard_leaves{replica, unique_, parameters_, leaves[part]};
    const bool is_overlapped = overlapped && shard + 1 == own_shards_.last;
    if (is_overlapped) {
      overlapped->begin(partials[worker]);
      shard_leaves.on_gradient = [&](size_t p, const Tensor& gradient) {
        overlapped->add(p, gradient);
      };
    }
    ShardGradients result =
        shard_backward({shard_loss}, {torch::full_like(shard_loss, weight)},
                       /*keep_graph=*/false, shard_leaves);
    totals.losses[s] = weight * shard_loss.item<double>();
    if (is_overlapped) {
      overlapped->finish(result.parameters);
      // What it summed is not needed as one partial sum any more.
      partials[worker].push_back(
          {shard, shard + 1, std::move(result.parameters)});
    } else {
      append_partial(partials[worker],
                     {shard, shard + 1, std::move(result.parameters)}, chunks);
    }
    chunk_gradients[part] = std::move(result.inputs);
    others[part] = std::move(result.others);
    worker_phases_[worker].backward_s += phase.seconds();
  });
  if (overlapped) {
    const TraceSpan span("wait", TraceCategory::kWait);
    overlapped->wait();
  }
  collect_phases();
  phases_.scatter_s = scatter_s;
  finish_buffers(chunks);
  ++step_;

  watch.restart();
  const std::vector<Tensor> input_gradients =
      differentiable.gather(chunk_gradients, leaves, options_.dim());
  OuterGradients outer;
  for (size_t i = 0; i < input_gradients.size(); ++i) {
    outer.add(differentiable.tensors()[i], input_gradients[i]);
  }
  if (exchange_) check_one_rank(others);
  outer.add_sums(std::move(others));
  totals.needs_grad = optimizer && (!outer.empty() || needs_grad(positions));
  enter(StepPhase::kAllReduce);
  Reduction reduction = reduction_of(std::move(partials), chunks, totals);
  StepResult result{.samples = shards.batch};
  for (const double shard_loss : totals.losses) result.loss += shard_loss;
  result.is_finite = std::isfinite(result.loss);
  if (exchange_) phases_.reduce_s = watch.restart();
  enter(StepPhase::kUpdate);
  if (!optimizer) {
    accumulate(finish(reduction));
    std::move(outer).backward();
    phases_.reduce_s += watch.restart();
  } else if (!result.is_finite) {
    drop_grads(positions);
  } else if (totals.needs_grad) {
    accumulate(finish(reduction));
    std::move(outer).backward();
    update_whole(take_grads(positions), positions, *optimizer,
                 options.clip_grad_norm(), result);
  } else if (options.clip_grad_norm() > 0) {
    update_whole(finish(reduction), positions, *optimizer,
                 options.clip_grad_norm(), result);
  } else {
    update(reduction, positions, *optimizer);
  }
  if (exchange_) {
    const AllReduceSpan span(rank(), "end of step");
    exchange_->end_step();
  }
  phases_.update_s = watch.seconds();
  return result;
}

optim::TorchOptimizer* ReplicaGroup::adopt(torch::optim::Optimizer& optimizer) {
  // A few are in use at a time, a GAN's two say; and a new one may be where
  // one was that is gone.
  constexpr size_t kMost = 8;
  std::erase_if(adopted_, [&](const auto& known) {
    return known->is_at(optimizer) && !known->is_for(optimizer);
  });
  for (const auto& known : adopted_) {
    if (known->is_at(optimizer)) return known.get();
  }
  auto made = optim::TorchOptimizer::adopt(
      optimizer,
      [this](const Tensor& parameter) { return make_state(parameter); });
  if (!made) return nullptr;
  if (adopted_.size() == kMost) adopted_.erase(adopted_.begin());
  return adopted_.emplace_back(std::move(made)).get();
}

StepResult ReplicaGroup::train_step(const std::vector<IValue>& inputs,
                                    const IValue& target, const ShardLoss& loss,
                                    torch::optim::Optimizer& optimizer,
                                    const TrainStepOptions& options) {
  if (optim::TorchOptimizer* const adopted = adopt(optimizer)) {
    adopted->follow();
    return train_step(inputs, target, loss, adopted, options);
  }
  StepResult result = train_step(inputs, target, loss, nullptr, options);
  const Stopwatch watch;
  enter(StepPhase::kUpdate);
  if (result.is_finite && options.clip_grad_norm() > 0) {
    std::vector<Tensor> parameters;
    for (const auto& group : optimizer.param_groups()) {
      parameters.insert(parameters.end(), group.params().begin(),
                        group.params().end());
    }
    result.gradient_norm =
        torch::nn::utils::clip_grad_norm_(parameters, options.clip_grad_norm());
    result.is_finite = std::isfinite(result.gradient_norm);
  }
  if (result.is_finite) optimizer.step();
  optimizer.zero_grad();
  phases_.update_s = watch.seconds();
  return result;
}

ReplicaGroup::StepShards ReplicaGroup::cut(const IValue& all, int64_t batch) {
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
        {.code = ErrorCode::kSamplesDiffer,
         .what = fmt::format("rank {} got another part of the batch than its "
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
