#include "lockstep/parallel/exchange/message_exchange.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/trace.h"
#include "lockstep/device/accelerator.h"
#include "lockstep/device/links/device_copy.h"
#include "lockstep/parallel/exchange/packed_tensors.h"

namespace lockstep {

using torch::Tensor;

namespace {

/// Merges neighbours that make up a node of the tree over `chunks` shards.
std::vector<PartialSum> merged(std::vector<PartialSum> partials,
                               int64_t chunks) {
  std::vector<PartialSum> nodes;
  for (PartialSum& partial : partials) {
    append_partial(nodes, std::move(partial), chunks);
  }
  return nodes;
}

}  // namespace

MessageExchange::MessageExchange(const ProcessGroup& world,
                                 const ModuleHandle& module,
                                 std::vector<Tensor> parameters, int64_t shards,
                                 int64_t most_partials, int64_t workers,
                                 StepSum::Options options)
    : RankExchange(names_of(parameters, module)),
      world_(world),
      buffers_(module.buffers),
      parameters_(std::move(parameters)),
      names_(names_of(parameters_, module)),
      shards_(shards),
      report_shape_{.shards = static_cast<size_t>(shards),
                    .partials = static_cast<size_t>(most_partials),
                    .parameters = parameters_.size()},
      has_one_worker_(workers == 1) {
  // A hook may do anything with the gradients, so any sum is allowed.
  const bool can_sum = options.hook || StepSum::can_sum(shards_, world_.size());
  if (can_sum && !parameters_.empty()) {
    step_sum_ = std::make_unique<StepSum>(world_, parameters_, names_,
                                          std::move(options));
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
  const bool was_sent = phase() == SyncPhase::kFinished;
  Tensor message = torch::zeros(
      {static_cast<int64_t>(StepReport::bytes(report_shape_))}, torch::kUInt8);
  const auto report_in = [&](const Tensor& bytes) {
    return StepReport(static_cast<std::byte*>(bytes.data_ptr()), report_shape_);
  };
  const StepReport own = report_in(message);
  own.write(own_partials, totals);
  if (was_sent || phase() == SyncPhase::kOpen) {
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

void MessageExchange::check_sent() const {
  for (size_t rank = 0; rank < reports_.size(); ++rank) {
    const int64_t repeated = reports_[rank].header().repeated;
    if (repeated == 0) continue;
    throw ParallelError(
        "ddp", sent_too_early(names_[static_cast<size_t>(repeated - 1)],
                              static_cast<int>(rank)));
  }
}

Problem MessageExchange::sent_too_early(const std::string& name,
                                        int rank) const {
  return {.code = ErrorCode::kRepeatedGradient,
          .what = fmt::format("the gradient of parameter '{}' changed on rank "
                              "{} in the backward after it was sent to the "
                              "other ranks",
                              name, rank),
          .expected =
              "one gradient for each parameter in a backward, as in "
              "the first step",
          .fix =
              "let the first step have the backward within the backward "
              "(checkpointing), too"};
}

SyncPhase MessageExchange::phase() const {
  return step_sum_ ? step_sum_->state().phase : SyncPhase::kIdle;
}

Reduction MessageExchange::reduce(std::vector<PartialSum> own_partials,
                                  int64_t chunks, StepTotals& totals) {
  torch::NoGradGuard no_grad;
  const bool was_sent = phase() == SyncPhase::kFinished;
  if (!was_sent) own_partials = merged(std::move(own_partials), chunks);
  // This is the first call that needs all ranks. Ranks that arrive early wait
  // here.
  std::optional<TraceSpan> span(std::in_place, "wait", TraceCategory::kWait);
  exchange_reports(own_partials, totals);
  if (was_sent) {
    check_sent();
    return take_sums(chunks);
  }
  span.emplace("all-reduce", TraceCategory::kCommunication);
  if (!step_sum_) {
    return Reduction(gather_and_add(std::move(own_partials), chunks), chunks,
                     parameters_);
  }
  if (phase() == SyncPhase::kOpen) {
    step_sum_->set_schedule(std::all_of(reports_.begin(), reports_.end(),
                                        [](const StepReport& report) {
                                          return report.header().repeated == 0;
                                        }));
  }
  step_sum_->sum_after(std::move(own_partials));
  return take_sums(chunks);
}

std::vector<PartialSum> MessageExchange::gather_and_add(
    std::vector<PartialSum> own_partials, int64_t chunks) const {
  std::vector<PartialSum> sums;
  for (int rank = 0; rank < world_.size(); ++rank) {
    const StepReport& report = reports_[static_cast<size_t>(rank)];
    for (size_t i = 0; i < static_cast<size_t>(report.header().partials); ++i) {
      const ShardRange& range = report.ranges()[i];
      PartialSum next{
          .first = range.first, .last = range.last, .gradients = {}};
      ModuleHandle::Named message;
      for (size_t p = 0; p < parameters_.size(); ++p) {
        OwnedGradient& gradient = next.gradients.emplace_back();
        if (report.places(i)[p] == StepReport::kNoGradient) continue;
        Tensor elements;
        if (rank == world_.rank()) {
          elements = std::move(own_partials[i].gradients[p]).release();
          accelerator::record_use(elements);  // made in a worker's stream
          elements = to_device(elements, place_of(parameters_[p]));
        } else {
          elements = torch::empty_like(parameters_[p].detach());
        }
        message.emplace_back(names_[p], elements);
        gradient = OwnedGradient::in(std::move(elements));
      }
      broadcast(world_, message, rank);
      append_partial(sums, std::move(next), chunks);
    }
  }
  return sums;
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
    const std::vector<optim::Block>& blocks, const std::vector<size_t>&) const {
  std::vector<size_t> all(blocks.size());
  std::iota(all.begin(), all.end(), size_t{0});
  return all;
}

std::vector<Tensor> MessageExchange::whole_sums(std::vector<Tensor> sums) {
  // The sums of the next step are written to the same memory.
  for (Tensor& sum : sums) {
    if (sum.defined()) sum = sum.clone();
  }
  return sums;
}

void MessageExchange::end_step() { broadcast(world_, buffers_, 0); }

Tensor MessageExchange::make_state(const Tensor& parameter) {
  return torch::zeros_like(parameter.detach());
}

}  // namespace lockstep
