#include "lockstep/comm/queue/call_factory.h"

#include <torch/types.h>

#include "lockstep/comm/collectives/sparse_all_reduce.h"

namespace lockstep {

using Timeout = Collectives::Timeout;
using c10d::OpType;

CollectiveCall CallFactory::all_reduce(const at::Tensor& tensor,
                                       const c10d::ReduceOp& op) const {
  if (tensor.defined() && tensor.is_sparse() && device_type_ == torch::kCPU) {
    check_sparse(tensor, op);
    return {.type = OpType::_ALLREDUCE_SPARSE,
            .outputs = {tensor},
            .perform = [tensor, op, size = size_](Collectives& collectives,
                                                  Timeout timeout) {
              sparse_all_reduce(collectives, tensor, op, size, timeout);
            }};
  }
  const CallChecks check = checks("allreduce");
  check.output(tensor);
  check.reduction(tensor, op);
  CollectiveCall call{
      .type = OpType::ALLREDUCE,
      .outputs = {tensor},
      .perform = [tensor, op](Collectives& collectives, Timeout timeout) {
        collectives.all_reduce(tensor, op, timeout);
      }};
  // Each call of a premul sum may have another factor.
  if (op.op_ != c10d::ReduceOp::PREMUL_SUM) call.reduction = op;
  return call;
}

CollectiveCall CallFactory::reduce(const at::Tensor& tensor, int64_t root,
                                   const c10d::ReduceOp& op) const {
  const CallChecks check = checks("reduce");
  check.root(root);
  check.output(tensor);
  check.reduction(tensor, op);
  return {.type = OpType::REDUCE,
          .outputs = {tensor},
          .perform = [tensor, root = static_cast<int>(root), op](
                         Collectives& collectives, Timeout timeout) {
            collectives.reduce(tensor, root, op, timeout);
          }};
}

CollectiveCall CallFactory::broadcast(const at::Tensor& tensor,
                                      int64_t root) const {
  const CallChecks check = checks("broadcast");
  check.root(root);
  if (rank_ == root) {
    check.input(tensor);
  } else {
    check.output(tensor);
  }
  return {.type = OpType::BROADCAST,
          .outputs = {tensor},
          .perform = [tensor, root = static_cast<int>(root)](
                         Collectives& collectives, Timeout timeout) {
            collectives.broadcast(tensor, root, timeout);
          }};
}

CollectiveCall CallFactory::all_gather(const Tensors& outputs,
                                       const at::Tensor& input) const {
  const CallChecks check = checks("allgather");
  check.input(input);
  check.outputs(outputs);
  check.parts(outputs, input);
  return {
      .type = OpType::ALLGATHER,
      .outputs = outputs,
      .perform = [outputs, input](Collectives& collectives, Timeout timeout) {
        collectives.all_gather(outputs, input, timeout);
      }};
}

CollectiveCall CallFactory::all_gather(const at::Tensor& input) const {
  checks("allgather").input(input);
  return all_gather(new_outputs(input), input);
}

CollectiveCall CallFactory::gather(const Tensors& outputs,
                                   const at::Tensor& input,
                                   int64_t root) const {
  const CallChecks check = checks("gather");
  check.root(root);
  check.input(input);
  check.outputs(outputs);
  if (rank_ == root) check.parts(outputs, input);
  return {.type = OpType::GATHER,
          .outputs = outputs,
          .perform = [outputs, input, root = static_cast<int>(root)](
                         Collectives& collectives, Timeout timeout) {
            collectives.gather(outputs, input, root, timeout);
          }};
}

CollectiveCall CallFactory::gather(const at::Tensor& input,
                                   int64_t root) const {
  const CallChecks check = checks("gather");
  check.root(root);
  check.input(input);
  return gather(rank_ == root ? new_outputs(input) : Tensors(), input, root);
}

CollectiveCall CallFactory::scatter(const at::Tensor& output,
                                    const Tensors& parts, int64_t root) const {
  const CallChecks check = checks("scatter");
  check.root(root);
  check.output(output);
  if (rank_ == root) {
    check.inputs(parts);
    check.parts(parts, output);
  }
  return {.type = OpType::SCATTER,
          .outputs = {output},
          .perform = [output, inputs = rank_ == root ? parts : Tensors(),
                      root = static_cast<int>(root)](Collectives& collectives,
                                                     Timeout timeout) {
            collectives.scatter(output, inputs, root, timeout);
          }};
}

CollectiveCall CallFactory::reduce_scatter(const at::Tensor& output,
                                           const Tensors& parts,
                                           const c10d::ReduceOp& op) const {
  const CallChecks check = checks("reduce_scatter");
  check.output(output);
  check.inputs(parts);
  check.parts(parts, output);
  check.reduction(output, op);
  return {.type = OpType::REDUCE_SCATTER,
          .outputs = {output},
          .perform = [output, parts, op](Collectives& collectives,
                                         Timeout timeout) {
            collectives.reduce_scatter(output, parts, op, timeout);
          }};
}

CollectiveCall CallFactory::all_to_all(const Tensors& outputs,
                                       const Tensors& inputs) const {
  const CallChecks check = checks("all_to_all");
  const auto size = static_cast<size_t>(size_);
  check.same_count("an output for each rank", size, outputs.size());
  check.same_count("an input for each rank", size, inputs.size());
  check.outputs(outputs);
  check.inputs(inputs);
  check.coalesced(outputs);
  check.coalesced(inputs);
  check.same_type(outputs[0], inputs[0]);
  const auto own = static_cast<size_t>(rank_);
  check.same_size(outputs[own], inputs[own]);
  return {
      .type = OpType::ALLTOALL,
      .outputs = outputs,
      .perform = [outputs, inputs](Collectives& collectives, Timeout timeout) {
        collectives.all_to_all(outputs, inputs, timeout);
      }};
}

CollectiveCall CallFactory::barrier() const {
  return {.type = OpType::BARRIER,
          .perform = [](Collectives& collectives, Timeout timeout) {
            collectives.barrier(timeout);
          }};
}

void CallFactory::check_send(const at::Tensor& tensor, int to, int tag) const {
  const CallChecks check = checks("send");
  check.peer(to);
  check.tag(tag);
  check.input(tensor);
}

void CallFactory::check_recv(const at::Tensor& tensor, int from,
                             int tag) const {
  const CallChecks check = checks("recv");
  check.peer(from);
  check.tag(tag);
  check.output(tensor);
}

void CallFactory::check_recv_any(const at::Tensor& tensor, int tag) const {
  const CallChecks check = checks("recv");
  check.tag(tag);
  check.output(tensor);
}

CallFactory::Tensors CallFactory::new_outputs(const at::Tensor& input) const {
  Tensors outputs;
  for (int r = 0; r < size_; ++r) outputs.push_back(torch::empty_like(input));
  return outputs;
}

}  // namespace lockstep
