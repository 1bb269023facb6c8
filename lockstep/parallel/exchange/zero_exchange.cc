#include "lockstep/parallel/exchange/zero_exchange.h"

#include "lockstep/base/error.h"
#include "lockstep/device/reserved_memory.h"
#include "lockstep/optim/blocks.h"

namespace lockstep {

using torch::Tensor;

void ZeroExchange::check(const ProcessGroup& world, int64_t shards,
                         int64_t workers, const CommHook& hook) {
  if (hook) {
    throw InvalidArgument(
        "ddp", {.code = ErrorCode::kBadOption,
                .what = "a comm hook gives every rank whole gradients, which "
                        "ZeRO cuts over the ranks",
                .fix = "leave out the hook, or zero()"});
  }
  if (workers == 1 && StepSum::can_sum(shards, world.size())) return;
  throw InvalidArgument(
      "ddp",
      {.code = ErrorCode::kBadOption,
       .what = "ZeRO can't cut the gradients of these shards over the ranks",
       .expected = "one device and 1, 2, 4, ... shards for each rank",
       .fix = "change the number of shards (accumulate), or leave out zero()"});
}

ZeroExchange::ZeroExchange(const ProcessGroup& world,
                           const ModuleHandle& module,
                           const std::vector<Tensor>& parameters,
                           int64_t shards, int64_t most_partials,
                           ZeroStage stage)
    : MessageExchange(world, module, parameters, shards, most_partials,
                      /*workers=*/1,
                      {.large_sum =
                           [this](size_t p, const Tensor& elements) {
                             return sum_large(p, elements);
                           },
                       .holds_few = stage == ZeroStage::kGradients}),
      stage_(stage),
      partition_(world, parameters),
      kept_(parameters.size()) {
  for (size_t p = 0; p < parameters.size(); ++p) {
    if (stage_ != ZeroStage::kGradients || !partition_.is_cut(p)) continue;
    kept_[p] = partition_.zeros(p, parameters[p]);
  }
}

// The thread that sums uses the members of this object.
ZeroExchange::~ZeroExchange() { stop_sums(); }

Tensor ZeroExchange::sum_large(size_t p, const Tensor& elements) {
  partition_.reduce_scatter(p, elements);
  if (kept_[p].defined()) partition_.copy_own(p, elements, kept_[p]);
  return kept_[p];
}

Problem ZeroExchange::sent_too_early(const std::string& name, int rank) const {
  Problem problem = MessageExchange::sent_too_early(name, rank);
  if (stage_ == ZeroStage::kGradients) {
    problem.expected = "one gradient for each parameter in a backward";
    problem.fix =
        "use ZeroStage::kOptimizerState, or leave out the backward within the "
        "backward (checkpointing)";
  }
  return problem;
}

std::vector<size_t> ZeroExchange::own_blocks(
    const std::vector<optim::Block>& blocks,
    const std::vector<size_t>& positions) const {
  std::vector<size_t> own;
  for (size_t b = 0; b < blocks.size(); ++b) {
    const size_t p = positions[static_cast<size_t>(blocks[b].tensor)];
    if (partition_.owns(p, blocks[b].offset)) own.push_back(b);
  }
  return own;
}

// Combines the bits of each number by OR. Ranks that don't know a number pass
// 0, and all others pass the same value.
void ZeroExchange::share(std::vector<double>& values) {
  Tensor bits = torch::from_blob(
      values.data(), {static_cast<int64_t>(values.size())}, torch::kInt64);
  world().all_reduce(bits, ReduceOp::BOR);
}

std::vector<Tensor> ZeroExchange::whole_sums(std::vector<Tensor> sums) {
  sums = MessageExchange::whole_sums(std::move(sums));
  for (size_t p = 0; p < sums.size(); ++p) {
    if (!sums[p].defined() || !partition_.is_cut(p)) continue;
    partition_.all_gather(p, optim::memory_view(sums[p]));
  }
  return sums;
}

void ZeroExchange::end_step() {
  for (size_t p = 0; p < parameters().size() && is_driven_; ++p) {
    if (!partition_.is_cut(p)) continue;
    partition_.all_gather(p, optim::memory_view(parameters()[p]));
  }
  MessageExchange::end_step();
}

Tensor ZeroExchange::whole_state(const Tensor& state) {
  const auto p = reserved_number(state);
  if (!p) return state;
  Tensor whole = state.detach().clone(torch::MemoryFormat::Preserve);
  partition_.all_gather(static_cast<size_t>(*p), optim::memory_view(whole));
  return whole;
}

Tensor ZeroExchange::make_state(const Tensor& parameter) {
  for (size_t p = 0; p < parameters().size(); ++p) {
    if (!parameters()[p].is_same(parameter) || !partition_.is_cut(p)) continue;
    return partition_.zeros(p, parameter);
  }
  return MessageExchange::make_state(parameter);
}

}  // namespace lockstep
