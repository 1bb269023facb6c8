#include "lockstep/comm/queued_backend.h"

#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/agent/link.h"

namespace lockstep {
namespace {

using Tensors = QueuedBackend::Tensors;

/// c10d passes lists for a rank that has several devices; here it has one.
template <typename List>
auto& only(List& list, const char* operation) {
  if (list.size() == 1) return list[0];
  throw CommError(
      {.what = fmt::format("{} works on one device of a rank", operation),
       .expected = "a list of 1",
       .got = fmt::format("one of {}", list.size())});
}

/// `tensor` cut along its first dimension into `parts` equal parts.
Tensors cut(const at::Tensor& tensor, int parts, const char* operation) {
  if (tensor.dim() > 0 && tensor.size(0) % parts == 0) {
    return tensor.tensor_split(parts, 0);
  }
  throw CommError(
      {.what =
           fmt::format("{} can't cut a tensor for {} ranks", operation, parts),
       .expected = fmt::format("a first dimension that {} divides", parts),
       .got = c10::str(tensor.sizes())});
}

/// `tensor` cut along its first dimension as `splits` say; evenly if empty.
Tensors cut(const at::Tensor& tensor, const std::vector<int64_t>& splits,
            int parts, const char* operation) {
  if (splits.empty()) return cut(tensor, parts, operation);
  int64_t sum = 0;
  for (const int64_t split : splits) sum += split;
  if (splits.size() == static_cast<size_t>(parts) && tensor.dim() > 0 &&
      sum == tensor.size(0)) {
    return tensor.split_with_sizes(splits, 0);
  }
  throw CommError(
      {.what = fmt::format("{}: the split sizes don't add up", operation),
       .expected = fmt::format("{} sizes, {} together", parts,
                               c10::str(tensor.sizes())),
       .got = c10::str(splits)});
}

void check_tag(int tag) {
  if (tag >= 0) return;
  throw InvalidArgument("comm", {.what = "a message can't have this tag",
                                 .expected = "one of at least 0",
                                 .got = std::to_string(tag)});
}

void check_mail(int peer, int tag, const c10d::Backend& backend) {
  check_tag(tag);
  if (peer >= 0 && peer < backend.getSize() && peer != backend.getRank()) {
    return;
  }
  throw InvalidArgument(
      "comm", {.what = fmt::format("rank {} can't send to or receive from "
                                   "this rank",
                                   backend.getRank()),
               .expected = fmt::format("another one from 0 to {}",
                                       backend.getSize() - 1),
               .got = std::to_string(peer)});
}

}  // namespace

QueuedBackend::QueuedBackend(std::unique_ptr<Collectives> collectives, int rank,
                             int size, std::chrono::milliseconds timeout)
    : Backend(rank, size),
      timeout_(timeout),
      collectives_(std::move(collectives)) {}

QueuedBackend::Timeout QueuedBackend::timeout_of(Timeout timeout) const {
  return timeout == c10d::kUnsetTimeout ? timeout_ : timeout;
}

QueuedBackend::Work QueuedBackend::submit(c10d::OpType type, Tensors outputs,
                                          bool is_async,
                                          std::function<void()> task) {
  agent::count_collective();
  return queue_.submit(
      c10::make_intrusive<QueuedWork>(getRank(), type, std::move(outputs)),
      std::move(task), is_async);
}

SharedMemory QueuedBackend::share(size_t bytes) {
  SharedMemory memory;
  submit(c10d::OpType::UNKNOWN, {}, false, [&] {
    memory = collectives_->share(bytes, timeout_);
  })->wait();
  return memory;
}

QueuedBackend::Work QueuedBackend::endCoalescing() {
  return submit(c10d::OpType::COALESCED, {}, true, [] {});
}

QueuedBackend::Work QueuedBackend::broadcast(
    Tensors& tensors, const c10d::BroadcastOptions& options) {
  at::Tensor tensor = only(tensors, "broadcast");
  const auto root = static_cast<int>(options.rootRank);
  return submit(c10d::OpType::BROADCAST, tensors, options.asyncOp,
                [=, this, timeout = timeout_of(options.timeout)]() mutable {
                  collectives_->broadcast(tensor, root, timeout);
                });
}

QueuedBackend::Work QueuedBackend::allreduce(
    Tensors& tensors, const c10d::AllreduceOptions& options) {
  at::Tensor tensor = only(tensors, "allreduce");
  return submit(c10d::OpType::ALLREDUCE, tensors, options.asyncOp,
                [=, this, op = options.reduceOp,
                 timeout = timeout_of(options.timeout)]() mutable {
                  collectives_->all_reduce(tensor, op, timeout);
                });
}

QueuedBackend::Work QueuedBackend::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  return submit(c10d::OpType::ALLREDUCE_COALESCED, tensors, options.asyncOp,
                [=, this, op = options.reduceOp,
                 timeout = timeout_of(options.timeout)]() mutable {
                  for (auto& tensor : tensors) {
                    collectives_->all_reduce(tensor, op, timeout);
                  }
                });
}

QueuedBackend::Work QueuedBackend::reduce(Tensors& tensors,
                                          const c10d::ReduceOptions& options) {
  at::Tensor tensor = only(tensors, "reduce");
  const auto root = static_cast<int>(options.rootRank);
  return submit(c10d::OpType::REDUCE, tensors, options.asyncOp,
                [=, this, op = options.reduceOp,
                 timeout = timeout_of(options.timeout)]() mutable {
                  collectives_->reduce(tensor, root, op, timeout);
                });
}

QueuedBackend::Work QueuedBackend::allgather(
    Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  Tensors parts = only(outputs, "allgather");
  return submit(c10d::OpType::ALLGATHER, parts, options.asyncOp,
                [=, this, input = only(inputs, "allgather"),
                 timeout = timeout_of(options.timeout)]() mutable {
                  collectives_->all_gather(parts, input, timeout);
                });
}

QueuedBackend::Work QueuedBackend::_allgather_base(
    at::Tensor& output, at::Tensor& input,
    const c10d::AllgatherOptions& options) {
  Tensors parts = cut(output.view({-1}), getSize(), "allgather_into_tensor");
  return submit(c10d::OpType::_ALLGATHER_BASE, {output}, options.asyncOp,
                [=, this, timeout = timeout_of(options.timeout)]() mutable {
                  collectives_->all_gather(parts, input, timeout);
                });
}

QueuedBackend::Work QueuedBackend::allgather_coalesced(
    Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  // outputs[rank][i] is rank's inputs[i].
  Lists of_inputs(inputs.size());
  for (const auto& of_rank : outputs) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      of_inputs[i].push_back(of_rank.at(i));
    }
  }
  return submit(c10d::OpType::ALLGATHER_COALESCED, inputs, options.asyncOp,
                [=, this, timeout = timeout_of(options.timeout)]() mutable {
                  for (size_t i = 0; i < inputs.size(); ++i) {
                    collectives_->all_gather(of_inputs[i], inputs[i], timeout);
                  }
                });
}

QueuedBackend::Work QueuedBackend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  Lists parts;
  for (const auto& output : outputs) {
    parts.push_back(
        cut(output.view({-1}), getSize(), "allgather_into_tensor_coalesced"));
  }
  return submit(c10d::OpType::COALESCED, outputs, options.asyncOp,
                [=, this, timeout = timeout_of(options.timeout)]() mutable {
                  for (size_t i = 0; i < inputs.size(); ++i) {
                    collectives_->all_gather(parts.at(i), inputs[i], timeout);
                  }
                });
}

QueuedBackend::Work QueuedBackend::gather(Lists& outputs, Tensors& inputs,
                                          const c10d::GatherOptions& options) {
  const auto root = static_cast<int>(options.rootRank);
  Tensors parts = getRank() == root ? only(outputs, "gather") : Tensors();
  return submit(c10d::OpType::GATHER, parts, options.asyncOp,
                [=, this, input = only(inputs, "gather"),
                 timeout = timeout_of(options.timeout)]() mutable {
                  collectives_->gather(parts, input, root, timeout);
                });
}

QueuedBackend::Work QueuedBackend::scatter(
    Tensors& outputs, Lists& inputs, const c10d::ScatterOptions& options) {
  const auto root = static_cast<int>(options.rootRank);
  const Tensors parts = getRank() == root ? only(inputs, "scatter") : Tensors();
  return submit(c10d::OpType::SCATTER, outputs, options.asyncOp,
                [=, this, output = only(outputs, "scatter"),
                 timeout = timeout_of(options.timeout)]() mutable {
                  collectives_->scatter(output, parts, root, timeout);
                });
}

QueuedBackend::Work QueuedBackend::reduce_scatter(
    Tensors& outputs, Lists& inputs,
    const c10d::ReduceScatterOptions& options) {
  const Tensors parts = only(inputs, "reduce_scatter");
  return submit(
      c10d::OpType::REDUCE_SCATTER, outputs, options.asyncOp,
      [=, this, output = only(outputs, "reduce_scatter"), op = options.reduceOp,
       timeout = timeout_of(options.timeout)]() mutable {
        collectives_->reduce_scatter(output, parts, op, timeout);
      });
}

QueuedBackend::Work QueuedBackend::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input,
    const c10d::ReduceScatterOptions& options) {
  const Tensors parts =
      cut(input.reshape({-1}), getSize(), "reduce_scatter_tensor");
  return submit(c10d::OpType::_REDUCE_SCATTER_BASE, {output}, options.asyncOp,
                [=, this, result = output, op = options.reduceOp,
                 timeout = timeout_of(options.timeout)]() mutable {
                  collectives_->reduce_scatter(result, parts, op, timeout);
                });
}

QueuedBackend::Work QueuedBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs,
    const c10d::ReduceScatterOptions& options) {
  Lists parts;
  for (const auto& input : inputs) {
    parts.push_back(
        cut(input.reshape({-1}), getSize(), "reduce_scatter_tensor_coalesced"));
  }
  return submit(c10d::OpType::COALESCED, outputs, options.asyncOp,
                [=, this, results = outputs, op = options.reduceOp,
                 timeout = timeout_of(options.timeout)]() mutable {
                  for (size_t i = 0; i < results.size(); ++i) {
                    collectives_->reduce_scatter(results[i], parts.at(i), op,
                                                 timeout);
                  }
                });
}

QueuedBackend::Work QueuedBackend::alltoall_base(
    at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
    std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) {
  Tensors outputs = cut(output, output_splits, getSize(), "all_to_all_single");
  const Tensors inputs =
      cut(input, input_splits, getSize(), "all_to_all_single");
  return submit(c10d::OpType::ALLTOALL_BASE, {output}, options.asyncOp,
                [=, this, timeout = timeout_of(options.timeout)]() mutable {
                  collectives_->all_to_all(outputs, inputs, timeout);
                });
}

QueuedBackend::Work QueuedBackend::alltoall(
    Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  return submit(c10d::OpType::ALLTOALL, outputs, options.asyncOp,
                [=, this, results = outputs, parts = inputs,
                 timeout = timeout_of(options.timeout)]() mutable {
                  collectives_->all_to_all(results, parts, timeout);
                });
}

QueuedBackend::Work QueuedBackend::barrier(
    const c10d::BarrierOptions& options) {
  return submit(c10d::OpType::BARRIER, {}, options.asyncOp,
                [this, timeout = timeout_of(options.timeout)] {
                  collectives_->barrier(timeout);
                });
}

QueuedBackend::Work QueuedBackend::send(Tensors& tensors, int to, int tag) {
  check_mail(to, tag, *this);
  return collectives_->send(only(tensors, "send"), to, tag, timeout_);
}

QueuedBackend::Work QueuedBackend::recv(Tensors& tensors, int from, int tag) {
  check_mail(from, tag, *this);
  return collectives_->recv(only(tensors, "recv"), from, tag, timeout_);
}

QueuedBackend::Work QueuedBackend::recvAnysource(Tensors& tensors, int tag) {
  check_tag(tag);
  return collectives_->recv_any(only(tensors, "recv"), tag, timeout_);
}

}  // namespace lockstep
