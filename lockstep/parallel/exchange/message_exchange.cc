#include "lockstep/parallel/exchange/message_exchange.h"

#include <optional>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/round_up.h"
#include "lockstep/base/trace.h"
#include "lockstep/device/reserved_memory.h"
#include "lockstep/parallel/exchange/packed_tensors.h"

namespace lockstep {

using torch::Tensor;

namespace {

constexpr int64_t kLine = 64;

/// Returns `count` elements of `type` from byte `at` of `bytes`, as a 1-d view.
Tensor elements_at(const Tensor& bytes, int64_t at, int64_t count,
                   at::ScalarType type) {
  const auto size = static_cast<int64_t>(c10::elementSize(type));
  return bytes.narrow(0, at, count * size).view(type);
}

}  // namespace

MessageExchange::MessageExchange(const World& world, const ModuleHandle& module,
                                 std::vector<Tensor> parameters, int64_t shards,
                                 int64_t most_partials, int64_t workers,
                                 ZeroStage zero, const CommHook& hook)
    : world_(world),
      buffers_(module.buffers),
      parameters_(std::move(parameters)),
      shards_(shards),
      most_partials_(most_partials),
      blocks_(optim::cut_into_blocks(parameters_)),
      bytes_(torch::dtype(torch::kUInt8)
                 .device(parameters_.empty() ? torch::Device(torch::kCPU)
                                             : parameters_[0].device())),
      has_hook_(hook != nullptr && !parameters_.empty()),
      has_one_worker_(workers == 1),
      zero_(zero),
      partition_(world_, parameters_) {
  at_.push_back(0);
  for (const Tensor& parameter : parameters_) {
    const auto bytes = static_cast<int64_t>(parameter.nbytes());
    at_.push_back(at_.back() + round_up(bytes, kLine));
  }
  // A hook may do anything with the gradients, so any sum is allowed.
  if (has_hook_ ||
      OverlappedSum::can_sum(parameters_, shards_, world_.size(), workers)) {
    overlapped_ = std::make_unique<OverlappedSum>(world_, parameters_,
                                                  partition_, zero_, hook);
  }
  broadcast(world_, module.parameters, 0);
  broadcast(world_, buffers_, 0);
}

OverlappedSum* MessageExchange::overlapped_sum(int64_t chunks) {
  // All ranks do it at the same step. It can't be done earlier, because the
  // buckets held the sums of the last step.
  if (overlapped_ && is_order_known_) overlapped_->follow_arrivals();
  // With a small batch, some ranks have no shard.
  is_watched_ = overlapped_ && has_one_worker_ && chunks == shards_ &&
                !repeats_gradients_;
  return is_watched_ ? overlapped_.get() : nullptr;
}

// Heads are small and all have the same size. A head contains the number of
// samples, the number of partial sums, their shards and flags, the losses and
// weights, whether the step needs `.grad`, and whether overlapped_ saw a
// gradient twice, all as doubles.
MessageExchange::Heads MessageExchange::exchange_heads(
    const std::vector<PartialSum>& own_partials, StepTotals& totals) {
  const auto parameters = static_cast<int64_t>(parameters_.size());
  const int64_t per_partial = 2 + parameters;
  Tensor message = torch::zeros(
      {4 + most_partials_ * per_partial + 2 * shards_}, torch::kDouble);
  auto* out = message.data_ptr<double>();
  out[0] = static_cast<double>(totals.samples);
  out[1] = static_cast<double>(own_partials.size());
  for (size_t p = 0; p < own_partials.size(); ++p) {
    double* head = out + 2 + static_cast<int64_t>(p) * per_partial;
    head[0] = static_cast<double>(own_partials[p].first);
    head[1] = static_cast<double>(own_partials[p].last);
    for (int64_t i = 0; i < parameters; ++i) {
      const auto at = static_cast<size_t>(i);
      const bool has = own_partials[p].gradients[at].defined() ||
                       (was_sent() && overlapped_->has_gradient(at));
      head[2 + i] = has ? 1 : 0;
    }
  }
  double* losses = out + 2 + most_partials_ * per_partial;
  for (size_t s = 0; s < totals.shards.size(); ++s) {
    losses[2 * s] = totals.shards[s].loss;
    losses[2 * s + 1] = totals.shards[s].weight;
  }
  double* out_flags = losses + 2 * shards_;
  out_flags[0] = totals.needs_grad ? 1 : 0;
  out_flags[1] = is_watched_ && !overlapped_->is_right() ? 1 : 0;

  Heads heads{.of_rank = {}, .is_right = true};
  for (const Tensor& from_rank : world_.all_gather(message).result()) {
    const auto* in = from_rank.const_data_ptr<double>();
    check_samples(world_.rank(), totals.samples,
                  static_cast<int>(heads.of_rank.size()),
                  static_cast<int64_t>(in[0]));
    heads.of_rank.emplace_back();
    const double* from_losses = in + 2 + most_partials_ * per_partial;
    const double* flags = from_losses + 2 * shards_;
    totals.needs_grad = totals.needs_grad || flags[0] != 0;
    heads.is_right = heads.is_right && flags[1] == 0;
    for (int64_t p = 0; p < static_cast<int64_t>(in[1]); ++p) {
      const double* head = in + 2 + p * per_partial;
      Head partial{.first = static_cast<int64_t>(head[0]),
                   .last = static_cast<int64_t>(head[1]),
                   .has_gradient = {}};
      for (int64_t i = 0; i < parameters; ++i) {
        partial.has_gradient.push_back(head[2 + i] != 0);
      }
      for (int64_t s = partial.first; s < partial.last; ++s) {
        totals.shards[static_cast<size_t>(s)] = {
            .loss = from_losses[2 * s], .weight = from_losses[2 * s + 1]};
      }
      heads.of_rank.back().push_back(std::move(partial));
    }
  }
  return heads;
}

ShardRange MessageExchange::bytes_of_rank(int rank) const {
  const auto count = static_cast<int64_t>(blocks_.size());
  const ShardRange own_blocks = shards_of_worker(rank, world_.size(), count);
  const auto begin = [&](int64_t b) {
    if (b == count) return at_.back();
    const optim::Block& block = blocks_[static_cast<size_t>(b)];
    const auto tensor = static_cast<size_t>(block.tensor);
    return at_[tensor] + block.offset * static_cast<int64_t>(
                                            parameters_[tensor].element_size());
  };
  return {begin(own_blocks.first), begin(own_blocks.last)};
}

Tensor MessageExchange::flatten(const PartialSum& partial) const {
  Tensor flat = torch::empty({at_.back()}, bytes_);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor& gradient = partial.gradients[i].tensor();
    if (!gradient.defined()) {
      flat.narrow(0, at_[i], at_[i + 1] - at_[i]).zero_();
      continue;
    }
    elements_at(flat, at_[i], gradient.numel(), gradient.scalar_type())
        .copy_(optim::memory_view(gradient));
  }
  return flat;
}

std::vector<Tensor> MessageExchange::scatter_partials(
    const std::vector<PartialSum>& own_partials, const Heads& heads) {
  std::vector<Tensor> flats;
  for (const PartialSum& partial : own_partials)
    flats.push_back(flatten(partial));
  const ShardRange own_bytes = bytes_of_rank(world_.rank());
  std::vector<Tensor> inputs, outputs;
  for (int rank = 0; rank < world_.size(); ++rank) {
    const ShardRange peer_bytes = bytes_of_rank(rank);
    std::vector<Tensor> parts;
    for (const Tensor& flat : flats) {
      parts.push_back(
          flat.narrow(0, peer_bytes.first, peer_bytes.last - peer_bytes.first));
    }
    inputs.push_back(parts.empty() ? torch::empty({0}, bytes_)
                                   : torch::stack(parts));
    outputs.push_back(torch::empty(
        {static_cast<int64_t>(heads.of_rank[static_cast<size_t>(rank)].size()),
         own_bytes.last - own_bytes.first},
        bytes_));
  }
  flats.clear();
  world_.all_to_all(outputs, inputs);
  return outputs;
}

Tensor MessageExchange::sum(const std::vector<Tensor>& partials,
                            const Heads& heads, int64_t chunks) const {
  const ShardRange bytes = bytes_of_rank(world_.rank());
  const ShardRange own_blocks = shards_of_worker(
      world_.rank(), world_.size(), static_cast<int64_t>(blocks_.size()));
  // Reduction sees each block of this rank as a separate tensor.
  std::vector<Tensor> layout;
  std::vector<PartialSum> all;
  for (size_t rank = 0; rank < heads.of_rank.size(); ++rank) {
    for (size_t p = 0; p < heads.of_rank[rank].size(); ++p) {
      const Head& head = heads.of_rank[rank][p];
      PartialSum partial{
          .first = head.first, .last = head.last, .gradients = {}};
      const Tensor memory = partials[rank].select(0, static_cast<int64_t>(p));
      for (int64_t b = own_blocks.first; b < own_blocks.last; ++b) {
        const optim::Block& block = blocks_[static_cast<size_t>(b)];
        const auto tensor = static_cast<size_t>(block.tensor);
        const Tensor& parameter = parameters_[tensor];
        const int64_t at =
            at_[tensor] - bytes.first +
            block.offset * static_cast<int64_t>(parameter.element_size());
        partial.gradients.emplace_back();
        if (head.has_gradient[tensor]) {
          partial.gradients.back() = OwnedGradient::in(
              elements_at(memory, at, block.length, parameter.scalar_type()));
        }
        if (all.empty()) {
          layout.push_back(torch::empty({block.length},
                                        bytes_.dtype(parameter.scalar_type())));
        }
      }
      all.push_back(std::move(partial));
    }
  }
  Tensor result = torch::zeros({bytes.last - bytes.first}, bytes_);
  if (all.empty()) return result;
  Reduction reduction(std::move(all), chunks, layout);
  Tensor scratch = torch::empty({optim::kBlockElements});
  for (size_t i = 0; i < layout.size(); ++i) {
    const Tensor block = reduction.block({.tensor = static_cast<int64_t>(i),
                                          .offset = 0,
                                          .length = layout[i].numel()},
                                         scratch);
    if (!block.defined()) continue;
    const optim::Block& where =
        blocks_[static_cast<size_t>(own_blocks.first) + i];
    const auto tensor = static_cast<size_t>(where.tensor);
    const auto size = static_cast<int64_t>(parameters_[tensor].element_size());
    elements_at(result, at_[tensor] - bytes.first + where.offset * size,
                block.numel(), block.scalar_type())
        .copy_(block);
  }
  return result;
}

void MessageExchange::check_sent(const Heads& heads) const {
  if (heads.is_right) return;
  throw ParallelError(
      "ddp",
      {.code = ErrorCode::kRepeatedGradient,
       .what = "a gradient changed in the backward after it was sent to the "
               "other ranks",
       .expected = zero_ == ZeroStage::kGradients
                       ? "one gradient for each parameter in a backward"
                       : "one gradient for each parameter in a backward, as in "
                         "the first step",
       .fix = zero_ == ZeroStage::kGradients
                  ? "use ZeroStage::kOptimizerState, or leave out the backward "
                    "within the backward (checkpointing)"
                  : "let the first step have the backward within the backward "
                    "(checkpointing), too"});
}

Reduction MessageExchange::reduce(std::vector<PartialSum> own_partials,
                                  int64_t chunks, StepTotals& totals) {
  torch::NoGradGuard no_grad;
  // This is the first call that needs all ranks. Ranks that arrive early wait
  // here.
  std::optional<TraceSpan> span(std::in_place, "wait", TraceCategory::kWait);
  const Heads heads = exchange_heads(own_partials, totals);
  has_pieces_ = false;
  if (was_sent()) {
    check_sent(heads);
    own_partials.clear();
  } else if (overlapped_ && (has_hook_ || chunks == shards_)) {
    if (is_watched_ && heads.is_right) overlapped_->send_early();
    repeats_gradients_ = repeats_gradients_ || !heads.is_right;
    span.emplace("all-reduce", TraceCategory::kCommunication);
    overlapped_->sum_after(std::move(own_partials));
  } else {
    return exchange_partials(std::move(own_partials), heads, chunks);
  }
  is_order_known_ = is_order_known_ || is_watched_;
  has_pieces_ = cuts_state();
  return overlapped(heads, chunks);
}

Reduction MessageExchange::exchange_partials(
    std::vector<PartialSum> own_partials, const Heads& heads, int64_t chunks) {
  std::optional<TraceSpan> span(std::in_place, "scatter gradients",
                                TraceCategory::kCommunication);
  const auto partials = scatter_partials(own_partials, heads);
  own_partials.clear();
  span.emplace("sum", TraceCategory::kCommunication);
  const Tensor own_sums = sum(partials, heads, chunks);
  span.emplace("gather sums", TraceCategory::kCommunication);
  const Tensor flat = torch::empty({at_.back()}, bytes_);
  std::vector<Tensor> outputs;
  for (int rank = 0; rank < world_.size(); ++rank) {
    const ShardRange bytes = bytes_of_rank(rank);
    outputs.push_back(flat.narrow(0, bytes.first, bytes.last - bytes.first));
  }
  world_.all_to_all(outputs, std::vector<Tensor>(
                                 static_cast<size_t>(world_.size()), own_sums));
  PartialSum sums{.first = 0, .last = chunks, .gradients = {}};
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor& parameter = parameters_[i];
    sums.gradients.emplace_back();
    if (!has_gradient(heads, i)) continue;
    sums.gradients.back() = OwnedGradient::in(
        elements_at(flat, at_[i], parameter.numel(), parameter.scalar_type())
            .as_strided(parameter.sizes(), parameter.strides()));
  }
  std::vector<PartialSum> whole;
  whole.push_back(std::move(sums));
  return Reduction(std::move(whole), chunks, parameters_);
}

bool MessageExchange::has_gradient(const Heads& heads, size_t p) const {
  for (const auto& of_rank : heads.of_rank) {
    for (const Head& head : of_rank) {
      if (head.has_gradient[p]) return true;
    }
  }
  return false;
}

Reduction MessageExchange::overlapped(const Heads& heads, int64_t chunks) {
  std::vector<PartialSum> sums(1);
  sums[0].last = chunks;
  for (size_t p = 0; p < parameters_.size(); ++p) {
    OwnedGradient sum = overlapped_->sum(p);
    sums[0].gradients.push_back(has_gradient(heads, p) ? std::move(sum)
                                                       : OwnedGradient());
  }
  return Reduction(std::move(sums), chunks, parameters_);
}

std::vector<size_t> MessageExchange::own_blocks(
    const std::vector<optim::Block>& blocks,
    const std::vector<size_t>& positions) const {
  std::vector<size_t> own;
  for (size_t b = 0; b < blocks.size(); ++b) {
    const size_t p = positions[static_cast<size_t>(blocks[b].tensor)];
    if (!cuts_state() || partition_.owns(p, blocks[b].offset)) own.push_back(b);
  }
  return own;
}

// Combines the bits of each number by OR. Ranks that don't know a number pass
// 0, and all others pass the same value.
void MessageExchange::share(std::vector<double>& values) {
  if (!cuts_state()) return;
  Tensor bits = torch::from_blob(
      values.data(), {static_cast<int64_t>(values.size())}, torch::kInt64);
  world_.all_reduce(bits, ReduceOp::BOR);
}

std::vector<Tensor> MessageExchange::whole_sums(std::vector<Tensor> sums) {
  for (size_t p = 0; p < sums.size(); ++p) {
    if (!sums[p].defined()) continue;
    // The sums of the next step are written to the same memory.
    sums[p] = sums[p].clone();
    if (has_pieces_ && partition_.is_cut(p)) {
      partition_.all_gather(p, optim::memory_view(sums[p]));
    }
  }
  return sums;
}

void MessageExchange::end_step() {
  if (cuts_state() && is_driven_) {
    for (size_t p = 0; p < parameters_.size(); ++p) {
      if (!partition_.is_cut(p)) continue;
      partition_.all_gather(p, optim::memory_view(parameters_[p]));
    }
  }
  broadcast(world_, buffers_, 0);
}

Tensor MessageExchange::whole_state(const Tensor& state) {
  const auto p = reserved_number(state);
  if (!p) return state;
  Tensor whole = state.detach().clone(torch::MemoryFormat::Preserve);
  partition_.all_gather(static_cast<size_t>(*p), optim::memory_view(whole));
  return whole;
}

Tensor MessageExchange::make_state(const Tensor& parameter) {
  for (size_t p = 0; cuts_state() && p < parameters_.size(); ++p) {
    if (!parameters_[p].is_same(parameter) || !partition_.is_cut(p)) continue;
    return partition_.zeros(p, parameter);
  }
  return torch::zeros_like(parameter.detach());
}

}  // namespace lockstep
