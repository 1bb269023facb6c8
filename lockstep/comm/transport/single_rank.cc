#include "lockstep/comm/transport/single_rank.h"

#include <memory>
#include <variant>

#include <torch/types.h>
#include <torch/utils.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/transport/dense.h"
#include "lockstep/comm/transport/tree_reduce.h"
#include "lockstep/shm/segment.h"
#include "lockstep/transport/transport.h"

namespace lockstep {
namespace {

[[noreturn]] void refuse_peer() {
  throw InvalidArgument("comm",
                        {.code = ErrorCode::kBadRank,
                         .what = "there is no rank to send to or receive from",
                         .expected = "a world of at least 2"});
}

void reduce(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  if (op.op_ == c10d::ReduceOp::PREMUL_SUM) copy_to(tensor, scaled(tensor, op));
}

/// Performs the collectives of one rank.
struct Perform {
  void operator()(const AllReduce& call) const { reduce(call.tensor, call.op); }
  void operator()(const SparseAllReduce&) const {}
  void operator()(const Reduce& call) const { reduce(call.tensor, call.op); }
  void operator()(const Broadcast&) const {}
  void operator()(const AllGather& call) const {
    copy_to(call.outputs[0], call.input);
  }
  void operator()(const AllGatherIntoTensor& call) const {
    copy_to(call.output, call.input.reshape(call.output.sizes()));
  }
  void operator()(const Gather& call) const {
    copy_to(call.outputs[0], call.input);
  }
  void operator()(const Scatter& call) const {
    copy_to(call.output, call.inputs[0]);
  }
  void operator()(const ReduceScatter& call) const {
    copy_to(call.output, call.inputs[0]);
    reduce(call.output, call.op);
  }
  void operator()(const ReduceScatterTensor& call) const {
    copy_to(call.output, call.input.reshape(call.output.sizes()));
    reduce(call.output, call.op);
  }
  void operator()(const AllToAll& call) const {
    copy_to(call.outputs[0], call.inputs[0]);
  }
  void operator()(const Barrier&) const {}
  void operator()(const ShareMemory& call) const {
    auto segment = shm::Segment::create(call.bytes);
    const transport::Bytes bytes = segment->bytes().first(call.bytes);
    *call.result = SharedMemory(std::make_shared<const SharedMemory::Ranks>(
        SharedMemory::Ranks{{.owner = std::move(segment), .bytes = bytes}}));
  }
};

}  // namespace

void SingleRank::run(const CollectiveCall& call, Timeout) {
  const torch::NoGradGuard no_grad;
  for (const auto& collective : call.collectives) {
    std::visit(Perform(), collective);
  }
}

Transport::WorkPtr SingleRank::begin(CollectiveCall call, Timeout timeout) {
  run(call, timeout);
  return {};
}

Transport::WorkPtr SingleRank::send(const at::Tensor&, int, int) {
  refuse_peer();
}
Transport::WorkPtr SingleRank::recv(const at::Tensor&, int, int) {
  refuse_peer();
}
Transport::WorkPtr SingleRank::recv_any(const at::Tensor&, int) {
  refuse_peer();
}

}  // namespace lockstep
