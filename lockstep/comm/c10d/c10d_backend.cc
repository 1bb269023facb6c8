#include "lockstep/comm/c10d/c10d_backend.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/collectives/joined_messages.h"
#include "lockstep/comm/collectives/sparse_all_reduce.h"

namespace lockstep {
namespace {

using Tensors = C10dBackend::Tensors;
using c10d::OpType;

/// Returns one part of a tensor for each rank, with the sizes `splits`. If
/// `splits` is empty, the parts have equal sizes.
Tensors cut(const at::Tensor& tensor, const std::vector<int64_t>& splits,
            int parts) {
  return splits.empty() ? tensor.tensor_split(parts, 0)
                        : tensor.split_with_sizes(splits, 0);
}

}  // namespace

C10dBackend::C10dBackend(std::shared_ptr<CollectiveQueue> queue, int rank,
                         int size)
    : Backend(rank, size), queue_(std::move(queue)) {}

C10dBackend::Timeout C10dBackend::timeout_of(Timeout timeout) const {
  return timeout == c10d::kUnsetTimeout ? queue_->timeout() : timeout;
}

c10::intrusive_ptr<c10d::Backend::Options> C10dBackend::getBackendOptions() {
  return c10::make_intrusive<Options>(getBackendName(), queue_->timeout());
}

at::Tensor C10dBackend::allocateTensor(long size, at::TensorOptions options) {
  const auto type = options.dtype().toScalarType();
  if (size < 0 || !options.device().is_cpu()) {
    throw InvalidArgument(
        "comm",
        {.code = ErrorCode::kBadTensor,
         .what = "can't allocate a tensor in shared memory",
         .expected = "at least 0 elements, on cpu",
         .got = fmt::format("{} on {}", size, c10::str(options.device()))});
  }
  const auto bytes = static_cast<size_t>(size) * c10::elementSize(type);
  return queue_->share(bytes).tensor(getRank(), 0, {size}, type);
}

C10dBackend::Work C10dBackend::endCoalescing() {
  return queue_->submit(
      {.type = OpType::COALESCED, .perform = [](Collectives&, Timeout) {}},
      CollectiveQueue::Mode::kAsync, queue_->timeout());
}

C10dBackend::Work C10dBackend::allreduce(
    Tensors& tensors, const c10d::AllreduceOptions& options) {
  const at::Tensor tensor = checks("allreduce").only(tensors);
  return submit(calls().all_reduce(tensor, options.reduceOp), options);
}

C10dBackend::Work C10dBackend::allreduce_sparse(
    Tensors& tensors, const c10d::AllreduceOptions& options) {
  const at::Tensor tensor = checks("allreduce_sparse").only(tensors);
  check_sparse(tensor, options.reduceOp);
  return submit(calls().all_reduce(tensor, options.reduceOp), options);
}

C10dBackend::Work C10dBackend::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  const CallChecks check = checks("allreduce_coalesced");
  check.coalesced(tensors);
  check.outputs(tensors);
  check.reduction(tensors[0], options.reduceOp);
  return submit({.type = OpType::ALLREDUCE_COALESCED,
                 .outputs = tensors,
                 .perform =
                     [tensors, op = options.reduceOp](Collectives& collectives,
                                                      Timeout timeout) {
                       if (may_overlap(tensors)) {
                         // In one message, all tensors are read before any of
                         // them is written.
                         collectives.all_reduce_coalesced(tensors, op, timeout);
                         return;
                       }
                       all_reduce_joined(collectives, tensors, op, timeout);
                     }},
                options);
}

C10dBackend::Work C10dBackend::reduce(Tensors& tensors,
                                      const c10d::ReduceOptions& options) {
  const CallChecks check = checks("reduce");
  const at::Tensor tensor = check.only(tensors);
  check.root(options.rootRank, options.rootTensor);
  return submit(calls().reduce(tensor, options.rootRank, options.reduceOp),
                options);
}

C10dBackend::Work C10dBackend::reduce_scatter(
    Tensors& outputs, Lists& inputs,
    const c10d::ReduceScatterOptions& options) {
  const CallChecks check = checks("reduce_scatter");
  return submit(calls().reduce_scatter(check.only(outputs), check.only(inputs),
                                       options.reduceOp),
                options);
}

C10dBackend::Work C10dBackend::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input,
    const c10d::ReduceScatterOptions& options) {
  Tensors outputs{output}, inputs{input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, options);
}

C10dBackend::Work C10dBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs,
    const c10d::ReduceScatterOptions& options) {
  const CallChecks check = checks("reduce_scatter_tensor");
  check.same_count("an input for each output", outputs.size(), inputs.size());
  check.outputs(outputs);
  check.inputs(inputs);
  Lists parts;
  for (size_t i = 0; i < outputs.size(); ++i) {
    check.whole(inputs[i], outputs[i]);
    check.reduction(outputs[i], options.reduceOp);
    parts.push_back(inputs[i].reshape({-1}).tensor_split(getSize(), 0));
  }
  return submit({.type = OpType::_REDUCE_SCATTER_BASE,
                 .outputs = outputs,
                 .perform =
                     [results = outputs, parts, op = options.reduceOp](
                         Collectives& collectives, Timeout timeout) {
                       for (size_t i = 0; i < results.size(); ++i) {
                         collectives.reduce_scatter(results[i], parts[i], op,
                                                    timeout);
                       }
                     }},
                options);
}

C10dBackend::Work C10dBackend::broadcast(
    Tensors& tensors, const c10d::BroadcastOptions& options) {
  const CallChecks check = checks("broadcast");
  const at::Tensor tensor = check.only(tensors);
  check.root(options.rootRank, options.rootTensor);
  return submit(calls().broadcast(tensor, options.rootRank), options);
}

C10dBackend::Work C10dBackend::allgather(
    Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  const CallChecks check = checks("allgather");
  return submit(calls().all_gather(check.only(outputs), check.only(inputs)),
                options);
}

C10dBackend::Work C10dBackend::_allgather_base(
    at::Tensor& output, at::Tensor& input,
    const c10d::AllgatherOptions& options) {
  Tensors outputs{output}, inputs{input};
  return allgather_into_tensor_coalesced(outputs, inputs, options);
}

C10dBackend::Work C10dBackend::allgather_coalesced(
    Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  const CallChecks check = checks("allgather_coalesced");
  check.inputs(inputs);
  check.same_count("a list for each rank", static_cast<size_t>(getSize()),
                   outputs.size());
  // outputs[rank][i] gets inputs[i] of that rank.
  Lists of_inputs(inputs.size());
  for (const auto& of_rank : outputs) {
    check.same_count("an output for each input", inputs.size(), of_rank.size());
    check.outputs(of_rank);
    for (size_t i = 0; i < inputs.size(); ++i) {
      of_inputs[i].push_back(of_rank[i]);
    }
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    check.parts(of_inputs[i], inputs[i]);
  }
  return submit(
      {.type = OpType::ALLGATHER_COALESCED,
       .outputs = inputs,
       .perform =
           [of_inputs, inputs](Collectives& collectives, Timeout timeout) {
             for (size_t i = 0; i < inputs.size(); ++i) {
               collectives.all_gather(of_inputs[i], inputs[i], timeout);
             }
           }},
      options);
}

C10dBackend::Work C10dBackend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  const CallChecks check = checks("allgather_into_tensor");
  check.same_count("an output for each input", inputs.size(), outputs.size());
  check.inputs(inputs);
  check.outputs(outputs);
  for (size_t i = 0; i < inputs.size(); ++i) check.whole(outputs[i], inputs[i]);
  return submit({.type = OpType::_ALLGATHER_BASE,
                 .outputs = outputs,
                 .perform =
                     [outputs, inputs, size = getSize()](
                         Collectives& collectives, Timeout timeout) {
                       for (size_t i = 0; i < inputs.size(); ++i) {
                         // An output with gaps is assembled in a copy.
                         const at::Tensor whole = outputs[i].contiguous();
                         Tensors parts = whole.view({-1}).tensor_split(size, 0);
                         collectives.all_gather(parts, inputs[i], timeout);
                         if (!whole.is_same(outputs[i]))
                           outputs[i].copy_(whole);
                       }
                     }},
                options);
}

C10dBackend::Work C10dBackend::gather(Lists& outputs, Tensors& inputs,
                                      const c10d::GatherOptions& options) {
  const CallChecks check = checks("gather");
  check.root(options.rootRank);
  const at::Tensor input = check.only(inputs);
  return submit(calls().gather(check.only_at_root(outputs, options.rootRank),
                               input, options.rootRank),
                options);
}

C10dBackend::Work C10dBackend::scatter(Tensors& outputs, Lists& inputs,
                                       const c10d::ScatterOptions& options) {
  const CallChecks check = checks("scatter");
  check.root(options.rootRank);
  const at::Tensor output = check.only(outputs);
  return submit(
      calls().scatter(output, check.only_at_root(inputs, options.rootRank),
                      options.rootRank),
      options);
}

C10dBackend::Work C10dBackend::alltoall_base(
    at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
    std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) {
  const CallChecks check = checks("all_to_all_single");
  check.output(output);
  check.input(input);
  check.same_type(output, input);
  check.splits(output, output_splits);
  check.splits(input, input_splits);
  return submit({.type = OpType::ALLTOALL_BASE,
                 .outputs = {output},
                 .perform =
                     [outputs = cut(output, output_splits, getSize()),
                      inputs = cut(input, input_splits, getSize())](
                         Collectives& collectives, Timeout timeout) {
                       collectives.all_to_all(outputs, inputs, timeout);
                     }},
                options);
}

C10dBackend::Work C10dBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                        const c10d::AllToAllOptions& options) {
  return submit(calls().all_to_all(outputs, inputs), options);
}

C10dBackend::Work C10dBackend::barrier(const c10d::BarrierOptions& options) {
  return submit(calls().barrier(), options);
}

void C10dBackend::monitoredBarrier(const c10d::BarrierOptions& options,
                                   bool wait_all_ranks) {
  queue_->monitored_barrier(timeout_of(options.timeout), wait_all_ranks);
}

C10dBackend::Work C10dBackend::send(Tensors& tensors, int to, int tag) {
  return queue_->send(checks("send").only(tensors), to, tag);
}

C10dBackend::Work C10dBackend::recv(Tensors& tensors, int from, int tag) {
  return queue_->recv(checks("recv").only(tensors), from, tag);
}

C10dBackend::Work C10dBackend::recvAnysource(Tensors& tensors, int tag) {
  return queue_->recv_any(checks("recv").only(tensors), tag);
}

}  // namespace lockstep
