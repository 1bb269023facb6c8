#include "lockstep/comm/queued_backend.h"

#include <algorithm>

#include <ATen/record_function.h>
#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/sparse_all_reduce.h"
#include "lockstep/control/worker_side.h"

namespace lockstep {
namespace {

using Tensors = QueuedBackend::Tensors;

/// As in the titles of ProcessGroupGloo: "gloo:all_reduce".
const char* title_of(c10d::OpType type) {
  switch (type) {
    case c10d::OpType::BROADCAST:
      return "broadcast";
    case c10d::OpType::ALLREDUCE:
    case c10d::OpType::ALLREDUCE_COALESCED:
      return "all_reduce";
    case c10d::OpType::_ALLREDUCE_SPARSE:
      return "sparse_all_reduce";
    case c10d::OpType::REDUCE:
      return "reduce";
    case c10d::OpType::ALLGATHER:
    case c10d::OpType::_ALLGATHER_BASE:
    case c10d::OpType::ALLGATHER_COALESCED:
      return "all_gather";
    case c10d::OpType::GATHER:
      return "gather";
    case c10d::OpType::SCATTER:
      return "scatter";
    case c10d::OpType::REDUCE_SCATTER:
    case c10d::OpType::_REDUCE_SCATTER_BASE:
      return "reduce_scatter";
    case c10d::OpType::ALLTOALL_BASE:
    case c10d::OpType::ALLTOALL:
      return "all_to_all";
    case c10d::OpType::BARRIER:
      return "barrier";
    case c10d::OpType::COALESCED:
      return "coalesced";
    default:
      return "collective";
  }
}

/// Whether two of the tensors may share memory. Takes a tensor's memory for
/// all from its first element to its last.
bool may_overlap(const Tensors& tensors) {
  struct Range {
    const std::byte* begin;
    const std::byte* end;
  };
  std::vector<Range> ranges;
  for (const auto& tensor : tensors) {
    if (tensor.numel() == 0) continue;
    int64_t last = 0;
    for (int64_t d = 0; d < tensor.dim(); ++d) {
      last += (tensor.size(d) - 1) * tensor.stride(d);
    }
    const auto* begin = static_cast<const std::byte*>(tensor.const_data_ptr());
    ranges.push_back(
        {begin, begin + (last + 1) * static_cast<int64_t>(tensor.itemsize())});
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
    return std::less<>()(a.begin, b.begin);
  });
  for (size_t i = 1; i < ranges.size(); ++i) {
    if (std::less<>()(ranges[i].begin, ranges[i - 1].end)) return true;
  }
  return false;
}

}  // namespace

QueuedBackend::QueuedBackend(std::unique_ptr<Collectives> collectives, int rank,
                             int size, std::chrono::milliseconds timeout)
    : Backend(rank, size),
      timeout_(timeout),
      collectives_(std::move(collectives)) {
  queue_.on_failure([this](const std::string& reason) { fail(reason); });
}

QueuedBackend::Timeout QueuedBackend::timeout_of(Timeout timeout) const {
  return timeout == c10d::kUnsetTimeout ? timeout_ : timeout;
}

QueuedBackend::Work QueuedBackend::submit_task(c10d::OpType type,
                                               Tensors outputs, bool is_async,
                                               Timeout timeout,
                                               std::function<void()> task) {
  control::count_collective();
  const uint64_t number = sequence_number_++;
  std::string title;
  // A profiler's event costs more than a small all-reduce: only if one looks.
  if (at::hasCallbacks())
    title = fmt::format("{}:{}", getBackendName(), title_of(type));
  return queue_.submit(c10::make_intrusive<QueuedWork>(
                           getRank(), type, std::move(outputs),
                           title.empty() ? nullptr : title.c_str(), number),
                       std::move(task), is_async, timeout);
}

c10::intrusive_ptr<c10d::Backend::Options> QueuedBackend::getBackendOptions() {
  return c10::make_intrusive<Options>(getBackendName(), timeout_);
}

SharedMemory QueuedBackend::share(size_t bytes) {
  SharedMemory memory;
  submit_task(c10d::OpType::UNKNOWN, {}, false, timeout_, [&] {
    memory = collectives_->share(bytes, timeout_);
  })->wait();
  return memory;
}

at::Tensor QueuedBackend::allocateTensor(long size, at::TensorOptions options) {
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
  return share(bytes).tensor(getRank(), 0, {size}, type);
}

QueuedBackend::Work QueuedBackend::endCoalescing() {
  return submit_task(c10d::OpType::COALESCED, {}, true, timeout_, [] {});
}

QueuedBackend::Work QueuedBackend::allreduce(
    Tensors& tensors, const c10d::AllreduceOptions& options) {
  const CallChecks check = checks("allreduce");
  at::Tensor tensor = check.only(tensors);
  if (tensor.defined() && tensor.is_sparse()) {
    return allreduce_sparse(tensors, options);
  }
  check.output(tensor);
  check.reduction(tensor, options.reduceOp);
  return submit(c10d::OpType::ALLREDUCE, tensors, options,
                [this, tensor, op = options.reduceOp](Timeout timeout) mutable {
                  collectives_->all_reduce(tensor, op, timeout);
                });
}

QueuedBackend::Work QueuedBackend::allreduce_sparse(
    Tensors& tensors, const c10d::AllreduceOptions& options) {
  const at::Tensor tensor = checks("allreduce_sparse").only(tensors);
  check_sparse(tensor, options.reduceOp);
  return submit(c10d::OpType::_ALLREDUCE_SPARSE, tensors, options,
                [this, tensor, op = options.reduceOp](Timeout timeout) {
                  sparse_all_reduce(*collectives_, tensor, op, getSize(),
                                    timeout);
                });
}

QueuedBackend::Work QueuedBackend::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  const CallChecks check = checks("allreduce_coalesced");
  check.coalesced(tensors);
  check.outputs(tensors);
  check.reduction(tensors[0], options.reduceOp);
  return submit(c10d::OpType::ALLREDUCE_COALESCED, tensors, options,
                [this, tensors, op = options.reduceOp](Timeout timeout) {
                  Tensors values = tensors;
                  const bool is_copied = may_overlap(tensors);
                  for (auto& value : values) {
                    if (is_copied) value = value.clone();
                  }
                  for (auto& value : values) {
                    collectives_->all_reduce(value, op, timeout);
                  }
                  for (size_t i = 0; is_copied && i < values.size(); ++i) {
                    tensors[i].copy_(values[i]);
                  }
                });
}

QueuedBackend::Work QueuedBackend::reduce(Tensors& tensors,
                                          const c10d::ReduceOptions& options) {
  const CallChecks check = checks("reduce");
  at::Tensor tensor = check.only(tensors);
  check.root(options.rootRank, options.rootTensor);
  check.output(tensor);
  check.reduction(tensor, options.reduceOp);
  const auto root = static_cast<int>(options.rootRank);
  return submit(
      c10d::OpType::REDUCE, tensors, options,
      [this, tensor, root, op = options.reduceOp](Timeout timeout) mutable {
        collectives_->reduce(tensor, root, op, timeout);
      });
}

QueuedBackend::Work QueuedBackend::reduce_scatter(
    Tensors& outputs, Lists& inputs,
    const c10d::ReduceScatterOptions& options) {
  const CallChecks check = checks("reduce_scatter");
  at::Tensor output = check.only(outputs);
  const Tensors parts = check.only(inputs);
  check.output(output);
  check.inputs(parts);
  check.parts(parts, output);
  check.reduction(output, options.reduceOp);
  return submit(
      c10d::OpType::REDUCE_SCATTER, outputs, options,
      [this, output, parts, op = options.reduceOp](Timeout timeout) mutable {
        collectives_->reduce_scatter(output, parts, op, timeout);
      });
}

QueuedBackend::Work QueuedBackend::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input,
    const c10d::ReduceScatterOptions& options) {
  Tensors outputs{output}, inputs{input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, options);
}

QueuedBackend::Work QueuedBackend::reduce_scatter_tensor_coalesced(
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
  return submit(c10d::OpType::_REDUCE_SCATTER_BASE, outputs, options,
                [this, results = outputs, parts,
                 op = options.reduceOp](Timeout timeout) mutable {
                  for (size_t i = 0; i < results.size(); ++i) {
                    collectives_->reduce_scatter(results[i], parts[i], op,
                                                 timeout);
                  }
                });
}

QueuedBackend::Work QueuedBackend::barrier(
    const c10d::BarrierOptions& options) {
  return submit(c10d::OpType::BARRIER, {}, options,
                [this](Timeout timeout) { collectives_->barrier(timeout); });
}

void QueuedBackend::monitoredBarrier(const c10d::BarrierOptions& options,
                                     bool wait_all_ranks) {
  collectives_->monitored_barrier(timeout_of(options.timeout), wait_all_ranks);
}

}  // namespace lockstep
