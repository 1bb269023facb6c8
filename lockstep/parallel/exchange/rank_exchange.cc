#include "lockstep/parallel/exchange/rank_exchange.h"

#include <algorithm>
#include <bit>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/parallel/exchange/message_exchange.h"
#include "lockstep/parallel/exchange/overlapped_sum.h"
#include "lockstep/parallel/exchange/shared_exchange.h"
#include "lockstep/parallel/exchange/verify_ranks.h"

namespace lockstep {

void barrier(const World& world) {
  const TraceSpan span("wait", TraceCategory::kWait);
  world.barrier();
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

namespace {

/// Returns the maximum number of partial sums of the workers of a rank: one for
/// each shard. With many shards, it is one for each tree level to the left and
/// to the right of the highest node.
int64_t most_partials_of(int64_t shards, int64_t ranks, int64_t workers) {
  const int64_t all = ranks * workers;
  const int64_t shards_of_one = (shards + all - 1) / all;
  const int64_t nodes = 2 * std::bit_width(static_cast<uint64_t>(shards));
  return workers * std::min(shards_of_one, nodes);
}

void check_zero(bool has_hook, bool can_sum) {
  if (has_hook) {
    throw InvalidArgument(
        "ddp", {.code = ErrorCode::kBadOption,
                .what = "a comm hook gives every rank whole gradients, which "
                        "ZeRO cuts over the ranks",
                .fix = "leave out the hook, or zero()"});
  }
  if (can_sum) return;
  throw InvalidArgument(
      "ddp",
      {.code = ErrorCode::kBadOption,
       .what = "ZeRO can't cut the gradients of these shards over the ranks",
       .expected = "parameters of float32 or float64, one device for each "
                   "rank, and 1, 2, 4, ... shards for each",
       .fix = "change the number of shards (accumulate), or leave out zero()"});
}

}  // namespace

std::unique_ptr<RankExchange> make_rank_exchange(
    const World& world, const ModuleHandle& module,
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
    check_zero(hook != nullptr, OverlappedSum::can_sum(parameters, shards,
                                                       world.size(), workers));
  }
  return std::make_unique<MessageExchange>(world, module, parameters, shards,
                                           most_partials, workers, zero, hook);
}

}  // namespace lockstep
