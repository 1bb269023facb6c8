#include "lockstep/parallel/exchange/rank_exchange.h"

#include <algorithm>
#include <bit>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/round_up.h"
#include "lockstep/parallel/exchange/message_exchange.h"
#include "lockstep/parallel/exchange/shared_exchange.h"
#include "lockstep/parallel/exchange/verify_ranks.h"
#include "lockstep/parallel/exchange/zero_exchange.h"

namespace lockstep {

void barrier(const ProcessGroup& world) {
  const TraceSpan span("wait", TraceCategory::kWait);
  world.barrier();
}

namespace {

/// Returns the size of `count` values in whole cache lines.
template <class T>
size_t line_bytes(size_t count) {
  return round_up(count * sizeof(T), size_t{64});
}

void check_samples(int rank, int64_t samples, int peer, int64_t peer_samples) {
  if (peer_samples == samples) return;
  throw ParallelError(
      "ddp", {.code = ErrorCode::kSamplesDiffer,
              .what = fmt::format(
                  "ranks {} and {} count a different number of samples "
                  "for one step",
                  rank, peer),
              .expected = fmt::format("{}", samples),
              .got = fmt::format("{}", peer_samples),
              .fix = "give every rank as many, or pass the batch's total"});
}

/// Returns the maximum number of partial sums of the workers of a rank: one for
/// each shard. With many shards, it is one for each tree level to the left and
/// to the right of the highest node.
int64_t most_partials_of(int64_t shards, int64_t ranks, int64_t workers) {
  const int64_t all = ranks * workers;
  const int64_t shards_of_one = (shards + all - 1) / all;
  const int64_t nodes = 2 * std::bit_width(static_cast<uint64_t>(shards));
  return workers * std::min(shards_of_one, nodes);
}

}  // namespace

size_t StepReport::bytes(const Shape& shape) {
  return line_bytes<Header>(1) + line_bytes<ShardLossTotal>(shape.shards) +
         line_bytes<ShardRange>(shape.partials) +
         line_bytes<int64_t>(shape.partials * shape.parameters) +
         line_bytes<int8_t>(shape.partials * shape.parameters);
}

StepReport::StepReport(std::byte* memory, const Shape& shape)
    : parameters_(shape.parameters) {
  const auto take = [&]<class T>(size_t count) {
    T* const first = reinterpret_cast<T*>(memory);
    memory += line_bytes<T>(count);
    return std::span(first, count);
  };
  header_ = take.operator()<Header>(1).data();
  losses_ = take.operator()<ShardLossTotal>(shape.shards);
  ranges_ = take.operator()<ShardRange>(shape.partials);
  places_ = take.operator()<int64_t>(shape.partials * shape.parameters);
  types_ = take.operator()<int8_t>(shape.partials * shape.parameters);
}

void StepReport::write(const std::vector<PartialSum>& own_partials,
                       const StepTotals& totals) const {
  *header_ = {.samples = totals.samples,
              .partials = static_cast<int64_t>(own_partials.size()),
              .needs_grad = totals.needs_grad ? 1 : 0,
              .repeated = 0,
              .wants_to_share = 0,
              .state = totals.state};
  std::copy(totals.shards.begin(), totals.shards.end(), losses_.begin());
  for (size_t p = 0; p < own_partials.size(); ++p) {
    ranges_[p] = {own_partials[p].first, own_partials[p].last};
  }
}

void StepReport::add_to(StepTotals& totals, int rank, int peer) const {
  check_samples(rank, totals.samples, peer, header_->samples);
  totals.needs_grad = totals.needs_grad || header_->needs_grad != 0;
  totals.has_other_state =
      totals.has_other_state || totals.state != header_->state;
  for (size_t p = 0; p < static_cast<size_t>(header_->partials); ++p) {
    for (int64_t s = ranges_[p].first; s < ranges_[p].last; ++s) {
      totals.shards[static_cast<size_t>(s)] = losses_[static_cast<size_t>(s)];
    }
  }
}

std::vector<std::string> names_of(const std::vector<torch::Tensor>& parameters,
                                  const ModuleHandle& module) {
  std::vector<std::string> names(parameters.size());
  for (size_t p = 0; p < parameters.size(); ++p) {
    const auto named = std::find_if(
        module.parameters.begin(), module.parameters.end(),
        [&](const auto& item) { return item.second.is_same(parameters[p]); });
    if (named != module.parameters.end()) names[p] = named->first;
  }
  return names;
}

std::unique_ptr<RankExchange> make_rank_exchange(
    const ProcessGroup& world, const ModuleHandle& module,
    const std::vector<torch::Tensor>& parameters, int64_t shards,
    const std::vector<Device>& devices, ZeroStage zero, const CommHook& hook) {
  verify_ranks(world, module);
  const auto workers = static_cast<int64_t>(devices.size());
  const int64_t most_partials = most_partials_of(shards, world.size(), workers);
  if (world.can_share_memory() && !hook) {
    return std::make_unique<SharedExchange>(world, module, parameters, shards,
                                            devices, most_partials);
  }
  if (zero != ZeroStage::kNone) {
    ZeroExchange::check(world, shards, workers, hook);
    return std::make_unique<ZeroExchange>(world, module, parameters, shards,
                                          most_partials, zero);
  }
  return std::make_unique<MessageExchange>(world, module, parameters, shards,
                                           most_partials, workers,
                                           StepSum::Options{.hook = hook});
}

}  // namespace lockstep
