#include "lockstep/parallel/step/sharded_update.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <unordered_map>

#include <ATen/Dispatch.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/OpMathType.h>
#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/trace.h"
#include "lockstep/device/accelerator.h"
#include "lockstep/device/intra_op.h"
#include "lockstep/device/links/device_copy.h"
#include "lockstep/optim/blocks.h"
#include "lockstep/parallel/exchange/verify_ranks.h"
#include "lockstep/parallel/step/outer_gradients.h"
#include "lockstep/parallel/step/shard_backward.h"

namespace lockstep {

using optim::Block;
using torch::Tensor;

namespace {

/// Returns the sum of squares of a 1-d tensor. The order of the additions
/// depends only on its length.
double sum_of_squares(const Tensor& block) {
  if (!block.is_cpu()) {
    // The norm of many small numbers may be too large for half.
    const auto type = at::toOpMathType(block.scalar_type());
    const double norm = block.norm(2, type).item<double>();
    return norm * norm;
  }
  double sum = 0;
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, block.scalar_type(), "sum_of_squares", [&] {
        // Uses eight chains, so that an addition does not have to wait for the
        // previous one.
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

/// Returns the part of `gradients` for `block`, as a 1-d tensor, or an
/// undefined tensor if there is no gradient.
Tensor part_of(const std::vector<Tensor>& gradients, const Block& block,
               const std::vector<size_t>& positions) {
  const Tensor& gradient =
      gradients[positions[static_cast<size_t>(block.tensor)]];
  return gradient.defined()
             ? optim::memory_view(gradient, block.offset, block.length)
             : Tensor();
}

}  // namespace

std::vector<std::vector<size_t>> ShardedUpdate::blocks_of_workers(
    const std::vector<Block>& blocks, const std::vector<size_t>& positions,
    const optim::BlockOptimizer* optimizer) const {
  std::vector<size_t> own_blocks;
  if (exchange_) {
    own_blocks = exchange_->own_blocks(blocks, positions);
  } else {
    own_blocks.resize(blocks.size());
    std::iota(own_blocks.begin(), own_blocks.end(), 0);
  }
  std::vector<std::vector<size_t>> per_worker(group_.workers().size());
  if (!group_.devices().front().is_cpu()) {
    for (const size_t b : own_blocks) {
      per_worker[optimizer
                     ? worker_on(optimizer->device_of(static_cast<int64_t>(b)))
                     : 0]
          .push_back(b);
    }
    return per_worker;
  }
  // With kEveryForward, only the output device updates.
  const size_t threads =
      group_.options().replication() == Replication::kEveryForward
          ? 1
          : per_worker.size();
  for (size_t k = 0; k < threads; ++k) {
    const ShardRange range =
        shards_of_worker(static_cast<int64_t>(k), static_cast<int64_t>(threads),
                         static_cast<int64_t>(own_blocks.size()));
    per_worker[k].assign(own_blocks.begin() + range.first,
                         own_blocks.begin() + range.last);
  }
  return per_worker;
}

size_t ShardedUpdate::worker_on(const torch::Device& device) const {
  for (size_t k = 0; k < group_.devices().size(); ++k) {
    if (torch_device(group_.devices()[k]) == device) return k;
  }
  return 0;
}

void ShardedUpdate::for_each_block(
    const char* name, const std::vector<Block>& blocks,
    const std::vector<size_t>& positions,
    const std::function<void(size_t, Tensor&)>& task,
    const optim::BlockOptimizer* optimizer) {
  const auto per_worker = blocks_of_workers(blocks, positions, optimizer);
  const Device& home = group_.devices().front();
  group_.for_each_worker([&](size_t k) {
    if (per_worker[k].empty()) return;
    const TraceSpan span(name, TraceCategory::kCompute);
    const Device& device = group_.devices()[k];
    // A copy between two devices waits for a stream of each. In one stream of
    // the parameters' device, the threads' copies would wait for each other.
    std::optional<accelerator::SideStream> stream;
    if (k > 0 && !home.is_cpu()) stream.emplace(home);
    intra_op_for(torch_device(device).type(),
                 static_cast<int64_t>(per_worker[k].size()),
                 [&](int64_t begin, int64_t end) {
                   torch::NoGradGuard no_grad;
                   Tensor scratch = torch::empty({optim::kBlockElements});
                   for (int64_t i = begin; i < end; ++i) {
                     task(per_worker[k][static_cast<size_t>(i)], scratch);
                   }
                 });
    accelerator::synchronize(device);
    accelerator::synchronize(home);
  });
}

std::vector<size_t> ShardedUpdate::all_positions() const {
  std::vector<size_t> all(group_.parameters().size());
  std::iota(all.begin(), all.end(), 0);
  return all;
}

std::vector<Tensor> ShardedUpdate::finish(Reduction& reduction, SumsFor use) {
  // The sums of narrow gradients are in memory of this rank, which therefore
  // needs all of them.
  const auto needs_all = [&](const Block& block) {
    return exchange_ && reduction.is_narrow(static_cast<size_t>(block.tensor));
  };
  const auto sum = [&](const Block& block) {
    Tensor in_place;
    reduction.block(block, in_place);
  };
  const std::vector<Block>& blocks = group_.blocks();
  reduction.prepare_take();
  if (reduction.has_merges() || reduction.has_narrow()) {
    for_each_block("sum", blocks, all_positions(), [&](size_t b, Tensor&) {
      if (!needs_all(blocks[b])) sum(blocks[b]);
    });
  }
  if (exchange_ && reduction.has_narrow()) {
    const torch::NoGradGuard no_grad;
    for (const Block& block : blocks) {
      if (needs_all(block)) sum(block);
    }
  }
  std::vector<Tensor> sums = reduction.take();
  // Sums in shared memory are overwritten by the ranks that update them.
  const bool keeps =
      use == SumsFor::kGradients || (exchange_ && exchange_->shares_memory());
  if (!exchange_ || !keeps) return sums;
  const AllReduceSpan span(group_.rank(), "all-reduce");
  return exchange_->whole_sums(std::move(sums));
}

void ShardedUpdate::accumulate(std::vector<Tensor> sums) {
  torch::NoGradGuard no_grad;
  OuterGradients hooked;
  for (size_t p = 0; p < group_.parameters().size(); ++p) {
    if (!sums[p].defined()) continue;
    Tensor& grad = group_.parameters()[p].mutable_grad();
    if (has_hooks(group_.parameters()[p])) {
      hooked.add(group_.parameters()[p], std::move(sums[p]));
    } else if (!grad.defined()) {
      grad = std::move(sums[p]);
    } else if (overlaps_another(p, grad)) {
      grad = grad + sums[p];
    } else {
      grad.add_(sums[p]);
    }
  }
  std::move(hooked).backward();
}

bool ShardedUpdate::overlaps_another(size_t p, const Tensor& grad) const {
  if (!grad.has_storage() || grad.storage().use_count() == 1) return false;
  for (size_t i = 0; i < group_.parameters().size(); ++i) {
    const Tensor& other = group_.parameters()[i].grad();
    if (i == p || !other.defined() || !other.is_alias_of(grad)) continue;
    if (at::get_overlap_status(grad, other) != at::MemOverlapStatus::No) {
      return true;
    }
  }
  return false;
}

CommonState::Contents ShardedUpdate::common_state(
    const optim::BlockOptimizer* optimizer,
    const std::vector<size_t>& positions) const {
  CommonState::Contents contents =
      optimizer ? CommonState::Contents(optimizer) : CommonState::Contents();
  for (size_t p = 0; p < group_.parameters().size(); ++p) {
    contents.add("", p, group_.parameters()[p]);
  }
  // If ranks divide the update, each of them has state of its own blocks.
  if (!optimizer || exchange_->divides_update()) return contents;
  optimizer->for_each_state(
      [&](const std::string& name, size_t p, const Tensor& state) {
        contents.add(name, positions[p], state);
      });
  return contents;
}

bool ShardedUpdate::needs_grad(const std::vector<size_t>& positions) const {
  std::vector<bool> is_updated(group_.parameters().size());
  for (const size_t p : positions) is_updated[p] = true;
  for (size_t p = 0; p < group_.parameters().size(); ++p) {
    const Tensor& parameter = group_.parameters()[p];
    if (parameter.grad().defined()) return true;
    if (!parameter.requires_grad()) continue;
    if (!is_updated[p] || has_hooks(parameter)) return true;
  }
  return false;
}

std::vector<Tensor> ShardedUpdate::take_grads(
    const std::vector<size_t>& positions) {
  std::vector<Tensor> gradients(group_.parameters().size());
  for (const size_t p : positions) {
    Tensor grad = std::move(group_.parameters()[p].mutable_grad());
    group_.parameters()[p].mutable_grad().reset();
    gradients[p] =
        OwnedGradient::take(std::move(grad), group_.parameters()[p]).release();
  }
  if (exchange_) {
    verify_gradients(group_.options().process_group(), group_.original(),
                     group_.unique(), gradients);
  }
  return gradients;
}

std::vector<size_t> positions_in(
    const std::vector<Tensor>& parameters,
    const std::vector<Tensor>& optimizer_parameters) {
  std::unordered_map<const void*, size_t> places;
  for (size_t p = 0; p < parameters.size(); ++p) {
    places[parameters[p].unsafeGetTensorImpl()] = p;
  }
  std::vector<size_t> positions;
  for (const Tensor& parameter : optimizer_parameters) {
    const auto found = places.find(parameter.unsafeGetTensorImpl());
    if (found == places.end()) {
      throw InvalidArgument(
          "parallel",
          {.code = ErrorCode::kBadOptimizer,
           .what = fmt::format("the optimizer's parameter {} (shape {}) is "
                               "not one of the model's",
                               positions.size(), c10::str(parameter.sizes())),
           .fix = "make the optimizer from model->parameters(); if the loss "
                  "has parameters of its own, give them a second optimizer, "
                  "and call its step() and zero_grad() after train_step()"});
    }
    positions.push_back(found->second);
  }
  return positions;
}

void ShardedUpdate::update(Reduction& reduction,
                           const std::vector<size_t>& positions,
                           optim::BlockOptimizer& optimizer, double factor) {
  std::vector<bool> has_gradient;
  for (const size_t p : positions) {
    has_gradient.push_back(reduction.has_gradient(p));
  }
  begin_update(optimizer, positions, has_gradient);
  const std::vector<Block>& blocks = optimizer.blocks();
  const char* name = reduction.has_merges() ? "sum+update" : "update";
  for_each_block(
      name, blocks, positions,
      [&](size_t b, Tensor& scratch) {
        Block block = blocks[b];
        block.tensor =
            static_cast<int64_t>(positions[static_cast<size_t>(block.tensor)]);
        Tensor gradient = reduction.block(block, scratch);
        if (!gradient.defined()) return;
        if (factor != 1) gradient.mul_(factor);
        update_block(optimizer, b, block, gradient);
      },
      &optimizer);
  end_update(optimizer, positions);
}

void ShardedUpdate::begin_update(optim::BlockOptimizer& optimizer,
                                 const std::vector<size_t>& positions,
                                 const std::vector<bool>& has_gradient) {
  is_updated_.assign(group_.parameters().size(), false);
  for (size_t i = 0; i < positions.size(); ++i) {
    is_updated_[positions[i]] = has_gradient[i];
  }
  const bool is_alone = exchange_ && exchange_->divides_update();
  optimizer.check_memory(is_alone ? exchange_ : nullptr,
                         group_.options().verify_memory());
  optimizer.begin_step(has_gradient);
}

void ShardedUpdate::update_block(optim::BlockOptimizer& optimizer, size_t b,
                                 const Block& block, const Tensor& gradient) {
  const auto p = static_cast<size_t>(block.tensor);
  for (const auto& each : attachments_) each->before_block(p, block);
  optimizer.update(static_cast<int64_t>(b), gradient);
  for (const auto& each : attachments_) each->after_block(p, block);
}

void ShardedUpdate::for_each_parameter_block(
    const char* name, const std::function<void(const Block&)>& task) {
  for_each_block(name, group_.blocks(), all_positions(),
                 [&](size_t b, Tensor&) { task(group_.blocks()[b]); });
}

void ShardedUpdate::end_update(const optim::BlockOptimizer& optimizer,
                               const std::vector<size_t>& positions) {
  if (const auto p = optimizer.changed_parameter()) {
    refuse_changed_memory(
        group_, exchange_, positions[*p],
        "or its state was changed between two steps in a way that leaves no "
        "trace: by a write through data() or raw memory, or by a fault of the "
        "memory",
        "change it with { torch::NoGradGuard no_grad; parameter.copy_(value); "
        "}; if the program does not write there, test the memory of this host; "
        "continue from a checkpoint");
  }
  for (const auto& each : attachments_) {
    each->after_update(is_updated_);
  }
}

void refuse_changed_memory(const ReplicaGroup& group,
                           const RankExchange* exchange, size_t p,
                           const char* what, const char* fix) {
  const ParallelError error(
      "parallel",
      {.code = ErrorCode::kParameterWritten,
       .what = fmt::format("parameter '{}' {}", group.name_of(p), what),
       .expected = "changes that increment the version of the tensor",
       .fix = fix});
  if (exchange)
    group.options().process_group().abort(std::string(error.text()));
  throw error;
}

void ShardedUpdate::update_whole(const std::vector<Tensor>& gradients,
                                 const std::vector<size_t>& positions,
                                 optim::BlockOptimizer& optimizer,
                                 const WholeOptions& options,
                                 StepResult& result) {
  const std::vector<Block>& blocks = optimizer.blocks();
  double scale = options.factor;
  if (options.clip > 0 || options.checks) {
    // The gradients are multiplied first, and their norm is that of the rounded
    // products. This gives the same bits as when they have to go through .grad.
    const std::vector<double> squares =
        multiply_and_measure(gradients, options.factor, blocks, positions);
    result.gradient_norm =
        std::sqrt(std::accumulate(squares.begin(), squares.end(), 0.0));
    scale = 1;
    result.is_finite = std::isfinite(result.gradient_norm);
    if (!result.is_finite) {
      result.not_finite = first_not_finite(squares, blocks, positions);
      return;
    }
  }
  if (options.clip > 0) {
    // Same as torch.nn.utils.clip_grad_norm_.
    scale = std::min(1.0, options.clip / (result.gradient_norm + 1e-6));
  }
  std::vector<bool> has_gradient;
  for (const size_t p : positions) {
    has_gradient.push_back(gradients[p].defined());
  }
  begin_update(optimizer, positions, has_gradient);
  for_each_block(
      "update", blocks, positions,
      [&](size_t b, Tensor&) {
        Tensor gradient = part_of(gradients, blocks[b], positions);
        if (!gradient.defined()) return;
        if (scale != 1) gradient.mul_(scale);
        Block block = blocks[b];
        block.tensor =
            static_cast<int64_t>(positions[static_cast<size_t>(block.tensor)]);
        update_block(optimizer, b, block, gradient);
      },
      &optimizer);
  end_update(optimizer, positions);
}

std::string ShardedUpdate::first_not_finite(
    Reduction& reduction, const std::vector<size_t>& positions,
    const optim::BlockOptimizer& optimizer) {
  const std::vector<Block>& blocks = optimizer.blocks();
  const std::vector<double> squares = multiply_and_measure(
      finish(reduction, SumsFor::kUpdate), /*factor=*/1, blocks, positions);
  return first_not_finite(squares, blocks, positions);
}

std::string ShardedUpdate::first_not_finite(
    const std::vector<double>& squares, const std::vector<Block>& blocks,
    const std::vector<size_t>& positions) const {
  for (size_t b = 0; b < blocks.size(); ++b) {
    if (std::isfinite(squares[b])) continue;
    const size_t p = positions[static_cast<size_t>(blocks[b].tensor)];
    return fmt::format("the gradient of parameter '{}'", group_.name_of(p));
  }
  return "";
}

std::vector<double> ShardedUpdate::multiply_and_measure(
    const std::vector<Tensor>& gradients, double factor,
    const std::vector<Block>& blocks, const std::vector<size_t>& positions) {
  std::vector<double> squares(blocks.size());
  for_each_block("norm", blocks, positions, [&](size_t b, Tensor&) {
    Tensor gradient = part_of(gradients, blocks[b], positions);
    if (!gradient.defined()) return;
    if (factor != 1) gradient.mul_(factor);
    squares[b] = sum_of_squares(gradient);
  });
  if (exchange_) {
    const AllReduceSpan span(group_.rank(), "norm");
    exchange_->share(squares);
  }
  return squares;
}

}  // namespace lockstep
