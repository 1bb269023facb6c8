#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <unordered_map>

#include <ATen/Dispatch.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/engine.h>

#include "lockstep/base/chunk.h"
#include "lockstep/base/error.h"
#include "lockstep/base/stopwatch.h"
#include "lockstep/base/trace.h"
#include "lockstep/device/cuda.h"
#include "lockstep/device/intra_op.h"
#include "lockstep/parallel/nested.h"
#include "lockstep/parallel/replica_group.h"
#include "lockstep/parallel/scatter_gather.h"

namespace lockstep {

using c10::IValue;
using optim::Block;
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

/// Of a 1-d tensor, in an order that depends on its length alone.
double sum_of_squares(const Tensor& block) {
  if (!block.is_cpu()) {
    const double norm = block.norm().item<double>();
    return norm * norm;
  }
  double sum = 0;
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, block.scalar_type(), "sum_of_squares", [&] {
        // Eight chains, so that one addition need not wait for another.
        double chains[8] = {};
        const auto* data = block.const_data_ptr<scalar_t>();
        for (int64_t i = 0; i < block.numel(); ++i) {
          const auto value = static_cast<double>(data[i]);
          chains[i % 8] += value * value;
        }
        for (const double chain : chains) sum += chain;
      });
  return sum;
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
    const IValue output = forward_shard(worker, shard, replica, own);
    Stopwatch phase;
    std::optional<TraceSpan> span(std::in_place, "loss",
                                  TraceCategory::kCompute, shard);
    const Tensor shard_loss = loss(output, own_target);
    check_loss(shard_loss);
    span.emplace("backward", TraceCategory::kCompute, shard);
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
  Reduction reduction = reduction_of(std::move(partials), chunks, totals);
  StepResult result{.samples = shards.batch};
  for (const double shard_loss : totals.losses) result.loss += shard_loss;
  result.is_finite = std::isfinite(result.loss);
  if (exchange_) phases_.reduce_s = watch.restart();
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

void ReplicaGroup::for_each_block(
    const char* name, size_t count,
    const std::function<void(size_t, Tensor&)>& task) {
  // The textbook's machine leaves this to the output device alone.
  const size_t hands = options_.replication() == Replication::kEveryForward
                           ? 1
                           : workers_.size();
  const auto total = static_cast<int64_t>(count);
  const ShardRange own =
      exchange_ ? exchange_->own_blocks(total) : ShardRange{0, total};
  run_all(workers_, [&](size_t k) {
    if (k >= hands) return;
    const TraceLane lane = lane_of(k);
    const TraceSpan span(name, TraceCategory::kCompute);
    const ShardRange range =
        shards_of_worker(static_cast<int64_t>(k), static_cast<int64_t>(hands),
                         own.last - own.first);
    const int64_t first = own.first + range.first;
    const int64_t last = own.first + range.last;
    intra_op_for(last - first, [&](int64_t begin, int64_t end) {
      torch::NoGradGuard no_grad;
      Tensor scratch = torch::empty({optim::kBlockElements});
      for (int64_t b = begin; b < end; ++b) {
        task(static_cast<size_t>(first + b), scratch);
      }
    });
    if (devices_[k].is_cuda()) cuda::synchronize();
  });
}

std::vector<Tensor> ReplicaGroup::finish(Reduction& reduction) {
  if (reduction.has_merges()) {
    for_each_block("sum", blocks_.size(), [&](size_t b, Tensor&) {
      Tensor in_place;
      reduction.block(blocks_[b], in_place);
    });
  }
  std::vector<Tensor> sums = reduction.take();
  if (!exchange_) return sums;
  // The others' blocks too; and what is shared is theirs after this step.
  const AllReduceSpan span(rank(), "all-reduce");
  meet(options_.world());
  for (Tensor& sum : sums) {
    if (sum.defined()) sum = sum.clone();
  }
  meet(options_.world());
  return sums;
}

void ReplicaGroup::accumulate(std::vector<Tensor> gradients) {
  torch::NoGradGuard no_grad;
  for (size_t p = 0; p < parameters_.size(); ++p) {
    if (!gradients[p].defined()) continue;
    Tensor& sum = parameters_[p].mutable_grad();
    if (sum.defined()) {
      sum.add_(gradients[p]);
    } else {
      sum = std::move(gradients[p]);
    }
  }
}

std::vector<size_t> ReplicaGroup::positions_in(
    const optim::Optimizer& optimizer) const {
  std::unordered_map<const void*, size_t> places;
  for (size_t p = 0; p < parameters_.size(); ++p) {
    places[parameters_[p].unsafeGetTensorImpl()] = p;
  }
  std::vector<size_t> positions;
  for (const Tensor& parameter : optimizer.parameters()) {
    const auto found = places.find(parameter.unsafeGetTensorImpl());
    if (found == places.end()) {
      throw InvalidArgument(
          "parallel",
          {.what = fmt::format("the optimizer's parameter {} (shape {}) is "
                               "not one of the model's",
                               positions.size(), c10::str(parameter.sizes())),
           .fix = "make the optimizer from model->parameters()"});
    }
    positions.push_back(found->second);
  }
  return positions;
}

void ReplicaGroup::update(Reduction& reduction, optim::Optimizer& optimizer) {
  const std::vector<size_t> positions = positions_in(optimizer);
  std::vector<bool> has_gradient;
  for (const size_t p : positions) {
    has_gradient.push_back(reduction.has_gradient(p));
  }
  optimizer.begin_step(has_gradient);
  const std::vector<Block>& blocks = optimizer.blocks();
  const char* name = reduction.has_merges() ? "sum+update" : "update";
  for_each_block(name, blocks.size(), [&](size_t b, Tensor& scratch) {
    Block block = blocks[b];
    block.tensor =
        static_cast<int64_t>(positions[static_cast<size_t>(block.tensor)]);
    const Tensor gradient = reduction.block(block, scratch);
    if (gradient.defined()) {
      optimizer.update(static_cast<int64_t>(b), gradient);
    }
  });
}

double ReplicaGroup::update_clipped(Reduction& reduction,
                                    optim::Optimizer& optimizer, double clip) {
  const std::vector<size_t> positions = positions_in(optimizer);
  const std::vector<Tensor> gradients = finish(reduction);
  const std::vector<Block>& blocks = optimizer.blocks();
  const auto view = [&](const Block& block) {
    const Tensor& gradient =
        gradients[positions[static_cast<size_t>(block.tensor)]];
    return gradient.defined()
               ? optim::memory_view(gradient, block.offset, block.length)
               : Tensor();
  };
  std::vector<double> squares(blocks.size());
  for_each_block("norm", blocks.size(), [&](size_t b, Tensor&) {
    const Tensor gradient = view(blocks[b]);
    if (gradient.defined()) squares[b] = sum_of_squares(gradient);
  });
  if (exchange_) {
    const AllReduceSpan span(rank(), "norm");
    exchange_->share(squares);
  }
  double total = 0;
  for (const double square : squares) total += square;
  const double norm = std::sqrt(total);
  if (!std::isfinite(norm)) return norm;

  std::vector<bool> has_gradient;
  for (const size_t p : positions) {
    has_gradient.push_back(gradients[p].defined());
  }
  optimizer.begin_step(has_gradient);
  // As torch.nn.utils.clip_grad_norm_.
  const double scale = std::min(1.0, clip / (norm + 1e-6));
  for_each_block("update", blocks.size(), [&](size_t b, Tensor&) {
    Tensor gradient = view(blocks[b]);
    if (!gradient.defined()) return;
    gradient.mul_(scale);
    optimizer.update(static_cast<int64_t>(b), gradient);
  });
  return norm;
}

}  // namespace lockstep
