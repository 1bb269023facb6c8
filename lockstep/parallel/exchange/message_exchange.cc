#include "lockstep/parallel/exchange/message_exchange.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/round_up.h"
#include "lockstep/base/trace.h"
#include "lockstep/device/accelerator.h"
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

MessageExchange::MessageExchange(const ProcessGroup& world,
                                 const ModuleHandle& module,
                                 std::vector<Tensor> parameters, int64_t shards,
                                 int64_t most_partials, int64_t workers,
                                 ZeroStage zero, const CommHook& hook)
    : RankExchange(names_of(parameters, module)),
      world_(world),
      buffers_(module.buffers),
      parameters_(std::move(parameters)),
      names_(names_of(parameters_, module)),
      shards_(shards),
      report_shape_{.shards = static_cast<size_t>(shards),
                    .partials = static_cast<size_t>(most_partials),
                    .parameters = parameters_.size()},
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
  for (const optim::Block& block : blocks_) {
    const auto p = static_cast<size_t>(block.tensor);
    const auto size = static_cast<int64_t>(parameters_[p].element_size());
    block_at_.push_back(at_[p] + block.offset * size);
  }
  block_at_.push_back(at_.back());
  // A hook may do anything with the gradients, so any sum is allowed.
  if (has_hook_ ||
      StepSum::can_sum(parameters_, shards_, world_.size(), workers)) {
    step_sum_ = std::make_unique<StepSum>(world_, parameters_, names_,
                                          partition_, zero_, hook);
  }
  broadcast(world_, module.parameters, 0);
  broadcast(world_, buffers_, 0);
}

StepSum* MessageExchange::step_sum(int64_t chunks) {
  // All ranks do it at the same step. It can't be done earlier, because the
  // buckets held the sums of the last step.
  if (step_sum_) step_sum_->follow_order();
  // With a small batch, some ranks have no shard.
  const bool follows_backward =
      step_sum_ && has_one_worker_ && chunks == shards_ &&
      step_sum_->schedule() != SendingSchedule::kAfterBackward;
  return follows_backward ? step_sum_.get() : nullptr;
}

void MessageExchange::exchange_reports(
    const std::vector<PartialSum>& own_partials, StepTotals& totals) {
  const SyncPhase phase =
      step_sum_ ? step_sum_->state().phase : SyncPhase::kIdle;
  const bool was_sent = phase == SyncPhase::kFinished;
  Tensor message = torch::zeros(
      {static_cast<int64_t>(StepReport::bytes(report_shape_))}, torch::kUInt8);
  const auto report_in = [&](const Tensor& bytes) {
    return StepReport(static_cast<std::byte*>(bytes.data_ptr()), report_shape_);
  };
  const StepReport own = report_in(message);
  own.write(own_partials, totals);
  if (was_sent || phase == SyncPhase::kOpen) {
    const auto repeated = step_sum_->state().repeated;
    own.header().repeated = repeated ? static_cast<int64_t>(*repeated) + 1 : 0;
  }
  for (size_t partial = 0; partial < own_partials.size(); ++partial) {
    for (size_t p = 0; p < parameters_.size(); ++p) {
      const bool has = own_partials[partial].gradients[p].defined() ||
                       (was_sent && step_sum_->has_gradient(p));
      own.places(partial)[p] = has ? 0 : StepReport::kNoGradient;
    }
  }
  reports_.clear();
  report_bytes_ = world_.all_gather(message).result();
  for (const Tensor& bytes : report_bytes_) {
    reports_.push_back(report_in(bytes));
    reports_.back().add_to(totals, world_.rank(),
                           static_cast<int>(reports_.size()) - 1);
  }
}

ShardRange MessageExchange::blocks_of_rank(int rank) const {
  return shards_of_worker(rank, world_.size(),
                          static_cast<int64_t>(blocks_.size()));
}

ShardRange MessageExchange::bytes_of_rank(int rank) const {
  const ShardRange blocks = blocks_of_rank(rank);
  return {block_at_[static_cast<size_t>(blocks.first)],
          block_at_[static_cast<size_t>(blocks.last)]};
}

Tensor MessageExchange::flatten(const PartialSum& partial) const {
  Tensor flat = torch::empty({at_.back()}, bytes_);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor& gradient = partial.gradients[i].tensor();
    if (!gradient.defined()) {
      flat.narrow(0, at_[i], at_[i + 1] - at_[i]).zero_();
      continue;
    }
    accelerator::record_use(gradient);  // made in a worker's stream
    elements_at(flat, at_[i], gradient.numel(), gradient.scalar_type())
        .copy_(optim::memory_view(gradient));
  }
  return flat;
}

std::vector<Tensor> MessageExchange::scatter_partials(
    const std::vector<PartialSum>& own_partials) {
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
    outputs.push_back(
        torch::empty({reports_[static_cast<size_t>(rank)].header().partials,
                      own_bytes.last - own_bytes.first},
                     bytes_));
  }
  flats.clear();
  world_.all_to_all(outputs, inputs);
  return outputs;
}

Tensor MessageExchange::sum(const std::vector<Tensor>& partials,
                            int64_t chunks) const {
  const ShardRange bytes = bytes_of_rank(world_.rank());
  const ShardRange own_blocks = blocks_of_rank(world_.rank());
  const auto first_block = static_cast<size_t>(own_blocks.first);
  const auto last_block = static_cast<size_t>(own_blocks.last);
  // Returns block `b` of this rank's bytes of a flat gradient.
  const auto block_in = [&](const Tensor& flat, size_t b) {
    const optim::Block& block = blocks_[b];
    return elements_at(
        flat, block_at_[b] - bytes.first, block.length,
        parameters_[static_cast<size_t>(block.tensor)].scalar_type());
  };
  std::vector<PartialSum> all;
  for (size_t rank = 0; rank < reports_.size(); ++rank) {
    for (int64_t i = 0; i < partials[rank].size(0); ++i) {
      const auto place = static_cast<size_t>(i);
      const ShardRange& shards = reports_[rank].ranges()[place];
      PartialSum& partial = all.emplace_back();
      partial.first = shards.first;
      partial.last = shards.last;
      const Tensor flat = partials[rank].select(0, i);
      for (size_t b = first_block; b < last_block; ++b) {
        OwnedGradient& gradient = partial.gradients.emplace_back();
        const auto tensor = static_cast<size_t>(blocks_[b].tensor);
        if (reports_[rank].places(place)[tensor] != StepReport::kNoGradient) {
          gradient = OwnedGradient::in(block_in(flat, b));
        }
      }
    }
  }
  Tensor result = torch::zeros({bytes.last - bytes.first}, bytes_);
  if (all.empty()) return result;
  // Reduction sees each block of this rank as a separate parameter.
  std::vector<Tensor> result_blocks;
  for (size_t b = first_block; b < last_block; ++b) {
    result_blocks.push_back(block_in(result, b));
  }
  Reduction reduction(std::move(all), chunks, result_blocks);
  Tensor scratch = torch::empty({optim::kBlockElements});
  for (size_t i = 0; i < result_blocks.size(); ++i) {
    const Tensor block = reduction.block({.tensor = static_cast<int64_t>(i),
                                          .offset = 0,
                                          .length = result_blocks[i].numel()},
                                         scratch);
    if (block.defined()) result_blocks[i].copy_(block);
  }
  return result;
}

void MessageExchange::check_sent() const {
  for (size_t rank = 0; rank < reports_.size(); ++rank) {
    const int64_t repeated = reports_[rank].header().repeated;
    if (repeated == 0) continue;
    const bool never_holds_all = zero_ == ZeroStage::kGradients;
    throw ParallelError(
        "ddp",
        {.code = ErrorCode::kRepeatedGradient,
         .what = fmt::format("the gradient of parameter '{}' changed on rank "
                             "{} in the backward after it was sent to the "
                             "other ranks",
                             names_[static_cast<size_t>(repeated - 1)], rank),
         .expected = never_holds_all
                         ? "one gradient for each parameter in a backward"
                         : "one gradient for each parameter in a backward, as "
                           "in the first step",
         .fix = never_holds_all
                    ? "use ZeroStage::kOptimizerState, or leave out the "
                      "backward within the backward (checkpointing)"
                    : "let the first step have the backward within the "
                      "backward (checkpointing), too"});
  }
}

Reduction MessageExchange::reduce(std::vector<PartialSum> own_partials,
                                  int64_t chunks, StepTotals& totals) {
  torch::NoGradGuard no_grad;
  // This is the first call that needs all ranks. Ranks that arrive early wait
  // here.
  std::optional<TraceSpan> span(std::in_place, "wait", TraceCategory::kWait);
  exchange_reports(own_partials, totals);
  has_pieces_ = false;
  if (step_sum_ && step_sum_->state().phase == SyncPhase::kFinished) {
    check_sent();
    own_partials.clear();
  } else if (step_sum_ && (has_hook_ || chunks == shards_)) {
    if (step_sum_->state().phase == SyncPhase::kOpen) {
      step_sum_->set_schedule(std::all_of(
          reports_.begin(), reports_.end(), [](const StepReport& report) {
            return report.header().repeated == 0;
          }));
    }
    span.emplace("all-reduce", TraceCategory::kCommunication);
    step_sum_->sum_after(std::move(own_partials));
  } else {
    return exchange_partials(std::move(own_partials), chunks);
  }
  has_pieces_ = cuts_state();
  return take_sums(chunks);
}

Reduction MessageExchange::exchange_partials(
    std::vector<PartialSum> own_partials, int64_t chunks) {
  std::optional<TraceSpan> span(std::in_place, "scatter gradients",
                                TraceCategory::kCommunication);
  const auto partials = scatter_partials(own_partials);
  own_partials.clear();
  span.emplace("sum", TraceCategory::kCommunication);
  const Tensor own_sums = sum(partials, chunks);
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
    if (!has_gradient(i)) continue;
    sums.gradients.back() = OwnedGradient::in(
        elements_at(flat, at_[i], parameter.numel(), parameter.scalar_type())
            .as_strided(parameter.sizes(), parameter.strides()));
  }
  std::vector<PartialSum> whole;
  whole.push_back(std::move(sums));
  return Reduction(std::move(whole), chunks, parameters_);
}

bool MessageExchange::has_gradient(size_t p) const {
  for (const StepReport& report : reports_) {
    for (int64_t i = 0; i < report.header().partials; ++i) {
      const auto partial = static_cast<size_t>(i);
      if (report.places(partial)[p] != StepReport::kNoGradient) return true;
    }
  }
  return false;
}

Reduction MessageExchange::take_sums(int64_t chunks) {
  std::vector<PartialSum> sums(1);
  sums[0].last = chunks;
  sums[0].gradients = step_sum_->take_sums();
  for (size_t p = 0; p < parameters_.size(); ++p) {
    if (!has_gradient(p)) sums[0].gradients[p] = {};
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
