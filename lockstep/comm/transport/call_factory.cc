#include "lockstep/comm/transport/call_factory.h"

#include <torch/types.h>

#include "lockstep/comm/transport/sparse_all_reduce.h"

namespace lockstep {

using c10d::OpType;

CollectiveCall CallFactory::all_reduce(const at::Tensor& tensor,
                                       const c10d::ReduceOp& op) const {
  if (tensor.defined() && tensor.is_sparse() &&
      device_type_.value_or(torch::kCPU) == torch::kCPU) {
    check_sparse(tensor, op);
    return {.type = OpType::_ALLREDUCE_SPARSE,
            .outputs = {tensor},
            .collectives = {SparseAllReduce{tensor, op}}};
  }
  const CallChecks check = checks("all_reduce");
  check.output(tensor);
  check.reduction(tensor, op);
  return {.type = OpType::ALLREDUCE,
          .outputs = {tensor},
          .collectives = {AllReduce{tensor, op}}};
}

CollectiveCall CallFactory::reduce(const at::Tensor& tensor, int64_t root,
                                   const c10d::ReduceOp& op) const {
  const CallChecks check = checks("reduce");
  check.root(root);
  check.output(tensor);
  check.reduction(tensor, op);
  return {.type = OpType::REDUCE,
          .outputs = {tensor},
          .collectives = {Reduce{tensor, static_cast<int>(root), op}}};
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
          .collectives = {Broadcast{tensor, static_cast<int>(root)}}};
}

CollectiveCall CallFactory::all_gather(const Tensors& outputs,
                                       const at::Tensor& input) const {
  const CallChecks check = checks("all_gather");
  check.input(input);
  check.outputs(outputs);
  check.parts(outputs, input);
  return {.type = OpType::ALLGATHER,
          .outputs = outputs,
          .collectives = {AllGather{outputs, input}}};
}

CollectiveCall CallFactory::all_gather(const at::Tensor& input) const {
  checks("all_gather").input(input);
  return all_gather(new_outputs(input), input);
}

CollectiveCall CallFactory::all_gather_into_tensor(
    const at::Tensor& output, const at::Tensor& input) const {
  const CallChecks check = checks("all_gather_into_tensor");
  check.input(input);
  check.output(output);
  check.whole(output, input);
  return {.type = OpType::_ALLGATHER_BASE,
          .outputs = {output},
          .collectives = {AllGatherIntoTensor{output, input}}};
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
          .collectives = {Gather{rank_ == root ? outputs : Tensors(), input,
                                 static_cast<int>(root)}}};
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
          .collectives = {Scatter{output, rank_ == root ? parts : Tensors(),
                                  static_cast<int>(root)}}};
}

CollectiveCall CallFactory::reduce_scatter(const at::Tensor& output,
                                           const Tensors& parts,
                                           const c10d::ReduceOp& op) const {
  const CallChecks check = checks("reduce_scatter");
  check.output(output);
  check.inputs(parts);
  check.same_count("an input for each rank", static_cast<size_t>(size_),
                   parts.size());
  for (const auto& part : parts) check.same_type(part, output);
  check.same_size(output, parts[static_cast<size_t>(rank_)]);
  check.reduction(output, op);
  return {.type = OpType::REDUCE_SCATTER,
          .outputs = {output},
          .collectives = {ReduceScatter{output, parts, op}}};
}

CollectiveCall CallFactory::reduce_scatter_tensor(
    const at::Tensor& output, const at::Tensor& input,
    const c10d::ReduceOp& op) const {
  const CallChecks check = checks("reduce_scatter_tensor");
  check.output(output);
  check.input(input);
  check.whole(input, output);
  check.reduction(output, op);
  return {.type = OpType::_REDUCE_SCATTER_BASE,
          .outputs = {output},
          .collectives = {ReduceScatterTensor{output, input, op}}};
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
  return {.type = OpType::ALLTOALL,
          .outputs = outputs,
          .collectives = {AllToAll{outputs, inputs}}};
}

CollectiveCall CallFactory::all_to_all_single(
    const at::Tensor& output, const at::Tensor& input,
    const std::vector<int64_t>& output_splits,
    const std::vector<int64_t>& input_splits) const {
  const CallChecks check = checks("all_to_all_single");
  check.output(output);
  check.input(input);
  check.same_type(output, input);
  check.splits(output, output_splits);
  check.splits(input, input_splits);
  const auto cut = [&](const at::Tensor& tensor,
                       const std::vector<int64_t>& splits) {
    return splits.empty() ? tensor.tensor_split(size_, 0)
                          : tensor.split_with_sizes(splits, 0);
  };
  return {.type = OpType::ALLTOALL_BASE,
          .outputs = {output},
          .collectives = {
              AllToAll{cut(output, output_splits), cut(input, input_splits)}}};
}

CollectiveCall CallFactory::barrier() const {
  return {.type = OpType::BARRIER, .collectives = {Barrier()}};
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
