#include "lockstep/comm/transport/device_transport.h"

#include <exception>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/text.h"
#include "lockstep/device/accelerator.h"

namespace lockstep {
namespace {

using Tensors = std::vector<at::Tensor>;
using Lists = std::vector<Tensors>;
using WorkPtr = Transport::WorkPtr;

/// Begins collectives of a c10d backend. c10d takes lists, with one item for
/// the one device of a rank.
struct Begin {
  c10d::Backend& backend;
  bool is_async;
  std::chrono::milliseconds timeout;

  template <typename Options>
  Options options() const {
    Options options;
    options.timeout = timeout;
    options.asyncOp = is_async;
    return options;
  }

  WorkPtr operator()(const AllReduce& call) const {
    auto its = options<c10d::AllreduceOptions>();
    its.reduceOp = call.op;
    Tensors tensors{call.tensor};
    return backend.allreduce(tensors, its);
  }
  WorkPtr operator()(const SparseAllReduce& call) const {
    auto its = options<c10d::AllreduceOptions>();
    its.reduceOp = call.op;
    Tensors tensors{call.tensor};
    return backend.allreduce_sparse(tensors, its);
  }
  WorkPtr operator()(const Reduce& call) const {
    auto its = options<c10d::ReduceOptions>();
    its.reduceOp = call.op;
    its.rootRank = call.root;
    Tensors tensors{call.tensor};
    return backend.reduce(tensors, its);
  }
  WorkPtr operator()(const Broadcast& call) const {
    auto its = options<c10d::BroadcastOptions>();
    its.rootRank = call.root;
    Tensors tensors{call.tensor};
    return backend.broadcast(tensors, its);
  }
  WorkPtr operator()(const AllGather& call) const {
    Lists outputs{call.outputs};
    Tensors inputs{call.input};
    return backend.allgather(outputs, inputs,
                             options<c10d::AllgatherOptions>());
  }
  WorkPtr operator()(const AllGatherIntoTensor& call) const {
    at::Tensor output = call.output, input = call.input;
    return backend._allgather_base(output, input,
                                   options<c10d::AllgatherOptions>());
  }
  WorkPtr operator()(const Gather& call) const {
    auto its = options<c10d::GatherOptions>();
    its.rootRank = call.root;
    Lists outputs;
    if (backend.getRank() == call.root) outputs.push_back(call.outputs);
    Tensors inputs{call.input};
    return backend.gather(outputs, inputs, its);
  }
  WorkPtr operator()(const Scatter& call) const {
    auto its = options<c10d::ScatterOptions>();
    its.rootRank = call.root;
    Tensors outputs{call.output};
    Lists inputs;
    if (backend.getRank() == call.root) inputs.push_back(call.inputs);
    return backend.scatter(outputs, inputs, its);
  }
  WorkPtr operator()(const ReduceScatter& call) const {
    auto its = options<c10d::ReduceScatterOptions>();
    its.reduceOp = call.op;
    Tensors outputs{call.output};
    Lists inputs{call.inputs};
    return backend.reduce_scatter(outputs, inputs, its);
  }
  WorkPtr operator()(const ReduceScatterTensor& call) const {
    auto its = options<c10d::ReduceScatterOptions>();
    its.reduceOp = call.op;
    at::Tensor output = call.output, input = call.input;
    return backend._reduce_scatter_base(output, input, its);
  }
  WorkPtr operator()(const AllToAll& call) const {
    Tensors outputs = call.outputs, inputs = call.inputs;
    return backend.alltoall(outputs, inputs, options<c10d::AllToAllOptions>());
  }
  WorkPtr operator()(const Barrier&) const {
    return backend.barrier(options<c10d::BarrierOptions>());
  }
  WorkPtr operator()(const ShareMemory&) const {
    throw CommError({.code = ErrorCode::kNoSharedMemory,
                     .what = "ranks over " + backend.getBackendName() +
                             " share no memory of the host",
                     .fix = "use the backend shm on one host"});
  }
};

}  // namespace

DeviceTransport::DeviceTransport(c10::intrusive_ptr<c10d::Backend> backend,
                                 std::string name, c10::DeviceType device_type,
                                 Timeout timeout)
    : Transport(
          std::move(name),
          CallFactory(backend->getRank(), backend->getSize(), device_type),
          timeout),
      backend_(std::move(backend)),
      device_type_(device_type) {}

DeviceTransport::~DeviceTransport() {
  if (is_aborted_) return;
  if (std::uncaught_exceptions() > 0) {
    abort("an exception");
  } else if (device_index_ >= 0) {
    accelerator::wait_for_all({device_type_, device_index_, 0});
  }
}

template <class Begin>
Transport::WorkPtr DeviceTransport::checked(c10d::OpType type,
                                            const Tensors& tensors,
                                            const Begin& begin) {
  if (!tensors.empty()) device_index_ = tensors.front().device().index();
  try {
    return begin();
  } catch (const c10::Error& error) {
    throw_backend_error(
        error, fmt::format("{} over {} failed on rank {} of {}",
                           c10d::opTypeToString(type), name(), rank(), size()));
  }
}

void DeviceTransport::run(const CollectiveCall& call, Timeout timeout) {
  for (const auto& collective : call.collectives) {
    checked(call.type, call.outputs, [&] {
      const WorkPtr work =
          std::visit(Begin{*backend_, /*is_async=*/false, timeout}, collective);
      // A backend may return no work for a synchronous call.
      if (work) work->wait();
      return work;
    });
  }
}

Transport::WorkPtr DeviceTransport::begin(CollectiveCall call,
                                          Timeout timeout) {
  // Calls complete in order, so all are done when the last one is.
  WorkPtr last;
  for (const auto& collective : call.collectives) {
    last = checked(call.type, call.outputs, [&] {
      return std::visit(Begin{*backend_, /*is_async=*/true, timeout},
                        collective);
    });
  }
  return last;
}

Transport::WorkPtr DeviceTransport::send(const at::Tensor& tensor, int to,
                                         int tag) {
  calls().check_send(tensor, to, tag);
  Tensors tensors{tensor};
  return checked(c10d::OpType::SEND, tensors,
                 [&] { return backend_->send(tensors, to, tag); });
}

Transport::WorkPtr DeviceTransport::recv(const at::Tensor& tensor, int from,
                                         int tag) {
  calls().check_recv(tensor, from, tag);
  Tensors tensors{tensor};
  return checked(c10d::OpType::RECV, tensors,
                 [&] { return backend_->recv(tensors, from, tag); });
}

Transport::WorkPtr DeviceTransport::recv_any(const at::Tensor& tensor,
                                             int tag) {
  calls().check_recv_any(tensor, tag);
  Tensors tensors{tensor};
  return checked(c10d::OpType::RECVANYSOURCE, tensors,
                 [&] { return backend_->recvAnysource(tensors, tag); });
}

void DeviceTransport::abort(const std::string& /*reason*/) noexcept {
  if (is_aborted_.exchange(true)) return;
  try {
    backend_->abort();
  } catch (const std::exception& error) {
    log_warning("comm", fmt::format("{} can't be aborted: {}", name(),
                                    first_line(text_of(error))));
  }
}

void throw_backend_error(const c10::Error& error, const std::string& what,
                         ErrorCode code) {
  // Memory that ran out is not an error of the collective.
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) throw;
  const std::string text = error.what_without_backtrace();
  const bool is_shared =
      text.find("Duplicate GPU detected") != std::string::npos;
  const bool is_nccl = text.find("NCCL") != std::string::npos;
  throw CommError(
      {.code = code,
       .what = what,
       .expected = is_shared ? "a GPU for each rank" : "",
       .got = last_line(text),
       .fix = is_shared ? "use as many GPUs as ranks, or the backend shm, "
                          "which copies through the host"
              : is_nccl ? "run it with NCCL_DEBUG=WARN, which prints the cause"
                        : "look at the output of the other ranks"});
}

void DeviceTransport::monitored_barrier(Timeout timeout, bool wait_all_ranks) {
  c10d::BarrierOptions options;
  options.timeout = timeout;
  backend_->monitoredBarrier(options, wait_all_ranks);
}

}  // namespace lockstep
