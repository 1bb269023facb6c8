#include "lockstep/comm/queue/collective_queue.h"

#include <utility>

#include <ATen/record_function.h>
#include <fmt/format.h>

#include "lockstep/control/worker_side.h"

namespace lockstep {
namespace {

/// Returns a title in the style of ProcessGroupGloo: "gloo:all_reduce".
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

}  // namespace

CollectiveQueue::CollectiveQueue(std::unique_ptr<Collectives> collectives,
                                 int rank, int size, Timeout timeout)
    : rank_(rank),
      calls_(rank, size, c10::DeviceType::CPU),
      timeout_(timeout),
      collectives_(std::move(collectives)) {
  queue_.on_failure([this](const std::string& reason) { abort(reason); });
}

void CollectiveQueue::run(const CollectiveCall& call) {
  const Timeout timeout = timeout_;
  const uint64_t number = take_number();
  // A Work and its functions cost as much as a small all-reduce. They are only
  // needed for a profiler or for a call that must wait.
  const auto perform = [&] { call.perform(*collectives_, timeout); };
  if (!at::hasCallbacks() && queue_.run_if_idle(perform)) return;
  submit_as(number, call, Mode::kSync, timeout)->wait();
}

Communicator::WorkPtr CollectiveQueue::begin(CollectiveCall call) {
  return submit(std::move(call), Mode::kAsync, timeout_);
}

c10::intrusive_ptr<QueuedWork> CollectiveQueue::submit(CollectiveCall call,
                                                       Mode mode,
                                                       Timeout timeout) {
  return submit_as(take_number(), std::move(call), mode, timeout);
}

c10::intrusive_ptr<QueuedWork> CollectiveQueue::submit_as(uint64_t number,
                                                          CollectiveCall call,
                                                          Mode mode,
                                                          Timeout timeout) {
  std::string title;
  // An event costs more than a small all-reduce, so it is only made while a
  // profiler is running.
  if (at::hasCallbacks()) {
    title = fmt::format("{}:{}", name(), title_of(call.type));
  }
  auto work = c10::make_intrusive<QueuedWork>(
      rank_, call.type, std::move(call.outputs),
      title.empty() ? nullptr : title.c_str(), number);
  return queue_.submit(
      std::move(work),
      [this, perform = std::move(call.perform), timeout] {
        perform(*collectives_, timeout);
      },
      mode == Mode::kAsync, timeout);
}

uint64_t CollectiveQueue::take_number() {
  control::count_collective();
  return sequence_number_++;
}

SharedMemory CollectiveQueue::share(size_t bytes) {
  SharedMemory memory;
  run({.perform = [&](Collectives& collectives, Timeout timeout) {
    memory = collectives.share(bytes, timeout);
  }});
  return memory;
}

Communicator::WorkPtr CollectiveQueue::send(const at::Tensor& tensor, int to,
                                            int tag) {
  calls_.check_send(tensor, to, tag);
  return collectives_->send(tensor, to, tag, timeout_);
}

Communicator::WorkPtr CollectiveQueue::recv(const at::Tensor& tensor, int from,
                                            int tag) {
  calls_.check_recv(tensor, from, tag);
  return collectives_->recv(tensor, from, tag, timeout_);
}

Communicator::WorkPtr CollectiveQueue::recv_any(const at::Tensor& tensor,
                                                int tag) {
  calls_.check_recv_any(tensor, tag);
  return collectives_->recv_any(tensor, tag, timeout_);
}

}  // namespace lockstep
