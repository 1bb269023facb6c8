// What QueuedBackend moves and does not reduce.
#include "lockstep/comm/queued_backend.h"

namespace lockstep {
namespace {

using Tensors = QueuedBackend::Tensors;

/// One part for each rank, as `splits` say; even ones if empty.
Tensors cut(const at::Tensor& tensor, const std::vector<int64_t>& splits,
            int parts) {
  return splits.empty() ? tensor.tensor_split(parts, 0)
                        : tensor.split_with_sizes(splits, 0);
}

}  // namespace

QueuedBackend::Work QueuedBackend::broadcast(
    Tensors& tensors, const c10d::BroadcastOptions& options) {
  const CallChecks check = checks("broadcast");
  at::Tensor tensor = check.only(tensors);
  check.root(options.rootRank, options.rootTensor);
  if (getRank() == options.rootRank) {
    check.input(tensor);
  } else {
    check.output(tensor);
  }
  const auto root = static_cast<int>(options.rootRank);
  return submit(c10d::OpType::BROADCAST, tensors, options,
                [this, tensor, root](Timeout timeout) mutable {
                  collectives_->broadcast(tensor, root, timeout);
                });
}

QueuedBackend::Work QueuedBackend::allgather(
    Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  const CallChecks check = checks("allgather");
  const at::Tensor input = check.only(inputs);
  Tensors parts = check.only(outputs);
  check.input(input);
  check.outputs(parts);
  check.parts(parts, input);
  return submit(c10d::OpType::ALLGATHER, parts, options,
                [this, input, parts](Timeout timeout) mutable {
                  collectives_->all_gather(parts, input, timeout);
                });
}

QueuedBackend::Work QueuedBackend::_allgather_base(
    at::Tensor& output, at::Tensor& input,
    const c10d::AllgatherOptions& options) {
  Tensors outputs{output}, inputs{input};
  return allgather_into_tensor_coalesced(outputs, inputs, options);
}

QueuedBackend::Work QueuedBackend::allgather_coalesced(
    Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  const CallChecks check = checks("allgather_coalesced");
  check.inputs(inputs);
  check.same_count("a list for each rank", static_cast<size_t>(getSize()),
                   outputs.size());
  // outputs[rank][i] is rank's inputs[i].
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
  return submit(c10d::OpType::ALLGATHER_COALESCED, inputs, options,
                [this, of_inputs, inputs](Timeout timeout) mutable {
                  for (size_t i = 0; i < inputs.size(); ++i) {
                    collectives_->all_gather(of_inputs[i], inputs[i], timeout);
                  }
                });
}

QueuedBackend::Work QueuedBackend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  const CallChecks check = checks("allgather_into_tensor");
  check.same_count("an output for each input", inputs.size(), outputs.size());
  check.inputs(inputs);
  check.outputs(outputs);
  for (size_t i = 0; i < inputs.size(); ++i) check.whole(outputs[i], inputs[i]);
  return submit(c10d::OpType::_ALLGATHER_BASE, outputs, options,
                [this, outputs, inputs](Timeout timeout) {
                  for (size_t i = 0; i < inputs.size(); ++i) {
                    // One with gaps is put together beside it.
                    const at::Tensor whole = outputs[i].contiguous();
                    Tensors parts = whole.view({-1}).tensor_split(getSize(), 0);
                    collectives_->all_gather(parts, inputs[i], timeout);
                    if (!whole.is_same(outputs[i])) outputs[i].copy_(whole);
                  }
                });
}

QueuedBackend::Work QueuedBackend::gather(Lists& outputs, Tensors& inputs,
                                          const c10d::GatherOptions& options) {
  const CallChecks check = checks("gather");
  check.root(options.rootRank);
  const at::Tensor input = check.only(inputs);
  Tensors parts = check.only_at_root(outputs, options.rootRank);
  check.input(input);
  check.outputs(parts);
  const auto root = static_cast<int>(options.rootRank);
  if (getRank() == root) check.parts(parts, input);
  return submit(c10d::OpType::GATHER, parts, options,
                [this, input, parts, root](Timeout timeout) mutable {
                  collectives_->gather(parts, input, root, timeout);
                });
}

QueuedBackend::Work QueuedBackend::scatter(
    Tensors& outputs, Lists& inputs, const c10d::ScatterOptions& options) {
  const CallChecks check = checks("scatter");
  check.root(options.rootRank);
  at::Tensor output = check.only(outputs);
  const Tensors parts = check.only_at_root(inputs, options.rootRank);
  check.output(output);
  check.inputs(parts);
  const auto root = static_cast<int>(options.rootRank);
  if (getRank() == root) check.parts(parts, output);
  return submit(c10d::OpType::SCATTER, outputs, options,
                [this, output, parts, root](Timeout timeout) mutable {
                  collectives_->scatter(output, parts, root, timeout);
                });
}

QueuedBackend::Work QueuedBackend::alltoall_base(
    at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
    std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) {
  const CallChecks check = checks("all_to_all_single");
  check.output(output);
  check.input(input);
  check.same_type(output, input);
  check.splits(output, output_splits);
  check.splits(input, input_splits);
  return submit(
      c10d::OpType::ALLTOALL_BASE, {output}, options,
      [this, outputs = cut(output, output_splits, getSize()),
       inputs = cut(input, input_splits, getSize())](Timeout timeout) mutable {
        collectives_->all_to_all(outputs, inputs, timeout);
      });
}

QueuedBackend::Work QueuedBackend::alltoall(
    Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  const CallChecks check = checks("all_to_all");
  const auto size = static_cast<size_t>(getSize());
  check.same_count("an output for each rank", size, outputs.size());
  check.same_count("an input for each rank", size, inputs.size());
  check.outputs(outputs);
  check.inputs(inputs);
  check.coalesced(outputs);
  check.coalesced(inputs);
  check.same_type(outputs[0], inputs[0]);
  return submit(c10d::OpType::ALLTOALL, outputs, options,
                [this, results = outputs, inputs](Timeout timeout) mutable {
                  collectives_->all_to_all(results, inputs, timeout);
                });
}

QueuedBackend::Work QueuedBackend::send(Tensors& tensors, int to, int tag) {
  const CallChecks check = checks("send");
  check.peer(to);
  check.tag(tag);
  check.input(check.only(tensors));
  return collectives_->send(tensors[0], to, tag, timeout_);
}

QueuedBackend::Work QueuedBackend::recv(Tensors& tensors, int from, int tag) {
  const CallChecks check = checks("recv");
  check.peer(from);
  check.tag(tag);
  check.output(check.only(tensors));
  return collectives_->recv(tensors[0], from, tag, timeout_);
}

QueuedBackend::Work QueuedBackend::recvAnysource(Tensors& tensors, int tag) {
  const CallChecks check = checks("recv");
  check.tag(tag);
  check.output(check.only(tensors));
  return collectives_->recv_any(tensors[0], tag, timeout_);
}

}  // namespace lockstep
