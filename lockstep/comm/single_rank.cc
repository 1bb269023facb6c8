#include "lockstep/comm/single_rank.h"

#include <torch/types.h>
#include <torch/utils.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/collectives/tree_reduce.h"

namespace lockstep {
namespace {

[[noreturn]] void refuse_peer() {
  throw InvalidArgument("comm",
                        {.code = ErrorCode::kBadRank,
                         .what = "there is no rank to send to or receive from",
                         .expected = "a world of at least 2"});
}

/// Collectives of one rank, which copy the inputs to the outputs.
class SingleRankCollectives : public Collectives {
 public:
  std::string name() const override { return "none"; }
  void all_reduce(const at::Tensor& tensor, const c10d::ReduceOp& op,
                  Timeout) override {
    if (op.op_ == c10d::ReduceOp::PREMUL_SUM) tensor.copy_(scaled(tensor, op));
  }
  void all_reduce_coalesced(const Tensors& tensors, const c10d::ReduceOp& op,
                            Timeout timeout) override {
    for (const auto& tensor : tensors) all_reduce(tensor, op, timeout);
  }
  size_t small_message_bytes() const override { return 0; }
  void reduce(const at::Tensor& tensor, int, const c10d::ReduceOp& op,
              Timeout timeout) override {
    all_reduce(tensor, op, timeout);
  }
  void broadcast(const at::Tensor&, int, Timeout) override {}
  void all_gather(const Tensors& outputs, const at::Tensor& input,
                  Timeout) override {
    outputs[0].copy_(input);
  }
  void gather(const Tensors& outputs, const at::Tensor& input, int,
              Timeout) override {
    outputs[0].copy_(input);
  }
  void scatter(const at::Tensor& output, const Tensors& inputs, int,
               Timeout) override {
    output.copy_(inputs[0]);
  }
  void reduce_scatter(const at::Tensor& output, const Tensors& inputs,
                      const c10d::ReduceOp& op, Timeout timeout) override {
    output.copy_(inputs[0]);
    all_reduce(output, op, timeout);
  }
  void all_to_all(const Tensors& outputs, const Tensors& inputs,
                  Timeout) override {
    outputs[0].copy_(inputs[0]);
  }
  void barrier(Timeout) override {}
  void monitored_barrier(Timeout, bool) override {}
  Work send(const at::Tensor&, int, int, Timeout) override { refuse_peer(); }
  Work recv(const at::Tensor&, int, int, Timeout) override { refuse_peer(); }
  Work recv_any(const at::Tensor&, int, Timeout) override { refuse_peer(); }
  bool can_share_memory() const override { return true; }
  SharedMemory share(size_t bytes, Timeout) override {
    return SharedMemory({shm::Segment::create(bytes)}, {bytes});
  }
  void abort(const std::string&) noexcept override {}
};

}  // namespace

void SingleRank::run(const CollectiveCall& call) {
  const torch::NoGradGuard no_grad;
  SingleRankCollectives collectives;
  call.perform(collectives, {});
}

Communicator::WorkPtr SingleRank::begin(CollectiveCall call) {
  run(call);
  return {};
}

Communicator::WorkPtr SingleRank::send(const at::Tensor&, int, int) {
  refuse_peer();
}
Communicator::WorkPtr SingleRank::recv(const at::Tensor&, int, int) {
  refuse_peer();
}
Communicator::WorkPtr SingleRank::recv_any(const at::Tensor&, int) {
  refuse_peer();
}

SharedMemory SingleRank::share(size_t bytes) {
  return SingleRankCollectives().share(bytes, {});
}

}  // namespace lockstep
