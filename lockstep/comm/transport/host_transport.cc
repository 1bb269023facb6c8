#include "lockstep/comm/transport/host_transport.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include <ATen/record_function.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/checksum.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/transport/dense.h"
#include "lockstep/comm/transport/sparse_all_reduce.h"
#include "lockstep/comm/transport/tree_reduce.h"
#include "lockstep/control/worker_side.h"

namespace lockstep {

using transport::Operation;

namespace {

using Tensors = std::vector<at::Tensor>;

class Results {
 public:
  explicit Results(const std::vector<at::Tensor>& tensors) {
    for (const auto& tensor : tensors) {
      results_.emplace_back(tensor);
      bytes_.push_back(results_.back().bytes());
    }
  }
  std::span<const Bytes> bytes() const { return bytes_; }
  void write_back() {
    for (auto& result : results_) result.write_back();
  }

 private:
  std::vector<Result> results_;
  std::vector<Bytes> bytes_;
};

class Inputs {
 public:
  explicit Inputs(const std::vector<at::Tensor>& tensors) {
    for (const auto& tensor : tensors) {
      tensors_.push_back(dense(tensor));
      bytes_.push_back(bytes_of_dense(tensors_.back()));
    }
  }
  std::span<const ConstBytes> bytes() const { return bytes_; }

 private:
  std::vector<at::Tensor> tensors_;
  std::vector<ConstBytes> bytes_;
};

bool is_premul(const c10d::ReduceOp& op) {
  return op.op_ == c10d::ReduceOp::PREMUL_SUM;
}

/// Returns the tree reduction, including the factor of a premul sum.
transport::Reduction all_reduction(at::ScalarType type,
                                   const c10d::ReduceOp& op) {
  Reduction reduction = tree_reduction(type, op.op_);
  if (is_premul(op)) reduction.factor = factor_of(op);
  return reduction;
}

/// Scales `tensor` for a premul sum whose reduction does not scale it.
void scale_unless_combined(at::Tensor tensor, const c10d::ReduceOp& op,
                           const Reduction& reduction) {
  if (is_premul(op) && !reduction.combine_scaled) {
    copy_to(tensor, scaled(tensor, op));
  }
}

uint64_t hash_of(at::IntArrayRef sizes) {
  Fnv1a hash;
  for (const int64_t size : sizes) hash.add_unit(static_cast<uint64_t>(size));
  return hash.value();
}

/// Describes this rank's call, so that the other ranks can compare it with
/// their own. In debug detail, the description includes the tensor's shape.
transport::Call call_of(transport::Operation operation,
                        const at::Tensor& tensor, int root,
                        const c10d::ReduceOp* op) {
  transport::Call call{.operation = operation, .root = root};
  call.type = transport::short_text(c10::toString(tensor.scalar_type()));
  if (op != nullptr) call.reduction = transport::short_text(name_of(op->op_));
  call.elements = static_cast<uint64_t>(tensor.numel());
  if (transport::is_debug_detail()) call.shape_hash = hash_of(tensor.sizes());
  return call;
}

/// Returns the name that c10d's functions in Python have for a call.
const char* function_name(c10d::OpType type) {
  using enum c10d::OpType;
  static const std::map<c10d::OpType, const char*> titles{
      {BROADCAST, "broadcast"},
      {ALLREDUCE, "all_reduce"},
      {ALLREDUCE_COALESCED, "all_reduce"},
      {_ALLREDUCE_SPARSE, "sparse_all_reduce"},
      {REDUCE, "reduce"},
      {ALLGATHER, "all_gather"},
      {_ALLGATHER_BASE, "all_gather"},
      {ALLGATHER_COALESCED, "all_gather"},
      {GATHER, "gather"},
      {SCATTER, "scatter"},
      {REDUCE_SCATTER, "reduce_scatter"},
      {_REDUCE_SCATTER_BASE, "reduce_scatter"},
      {ALLTOALL, "all_to_all"},
      {ALLTOALL_BASE, "all_to_all"},
      {BARRIER, "barrier"},
      {COALESCED, "coalesced"},
      {SEND, "send"},
      {RECV, "recv"},
      {RECVANYSOURCE, "recvAnySource"}};
  const auto title = titles.find(type);
  return title == titles.end() ? "collective" : title->second;
}

bool are_equally_long(const Tensors& tensors) {
  return std::ranges::all_of(tensors, [&](const at::Tensor& tensor) {
    return tensor.numel() == tensors[0].numel();
  });
}

/// Returns equal parts of `bytes`, one for each rank.
template <typename Byte>
std::vector<std::span<Byte>> parts_of(std::span<Byte> bytes, int ranks) {
  std::vector<std::span<Byte>> parts;
  const size_t part_bytes = bytes.size() / static_cast<size_t>(ranks);
  for (int r = 0; r < ranks; ++r) {
    parts.push_back(
        bytes.subspan(static_cast<size_t>(r) * part_bytes, part_bytes));
  }
  return parts;
}

/// Performs the collectives of a call over a transport.
struct Perform {
  transport::Transport& bytes;
  int rank;
  int size;
  std::chrono::milliseconds timeout;

  /// Announces a collective to the other ranks.
  void begin(Operation operation, const at::Tensor& tensor, int root = -1,
             const c10d::ReduceOp* op = nullptr) const {
    bytes.begin(call_of(operation, tensor, root, op), timeout);
  }

  void operator()(const AllReduce& call) const {
    Result result(call.tensor);
    const Reduction reduction =
        all_reduction(call.tensor.scalar_type(), call.op);
    begin(Operation::kAllReduce, call.tensor, -1, &call.op);
    scale_unless_combined(result.dense(), call.op, reduction);
    bytes.all_reduce(result.bytes(), reduction);
    result.write_back();
  }

  void operator()(const SparseAllReduce& call) const {
    sparse_all_reduce(call.tensor, call.op, size,
                      [&](const Tensors& outputs, const at::Tensor& input) {
                        (*this)(AllGather{outputs, input});
                      });
  }

  void operator()(const Reduce& call) const {
    Result result(call.tensor);
    const Reduction reduction =
        tree_reduction(call.tensor.scalar_type(), call.op.op_);
    begin(Operation::kReduce, call.tensor, call.root, &call.op);
    if (is_premul(call.op)) {
      at::Tensor product = scaled(result.dense(), call.op).contiguous();
      bytes.reduce(bytes_of_dense(product), call.root, reduction);
      if (rank == call.root) copy_and_wait(call.tensor, product);
      return;
    }
    bytes.reduce(result.bytes(), call.root, reduction);
    if (rank == call.root) result.write_back();
  }

  void operator()(const Broadcast& call) const {
    Result result(call.tensor);
    begin(Operation::kBroadcast, call.tensor, call.root);
    bytes.broadcast(result.bytes(), call.root);
    if (rank != call.root) result.write_back();
  }

  void operator()(const AllGather& call) const {
    const at::Tensor input = dense(call.input);
    Results results(call.outputs);
    begin(Operation::kAllGather, call.input);
    bytes.all_gather(bytes_of_dense(input), results.bytes());
    results.write_back();
  }

  void operator()(const AllGatherIntoTensor& call) const {
    const at::Tensor input = dense(call.input);
    Result result(call.output);
    begin(Operation::kAllGather, call.input);
    bytes.all_gather(bytes_of_dense(input), parts_of(result.bytes(), size));
    result.write_back();
  }

  void operator()(const Gather& call) const {
    const at::Tensor input = dense(call.input);
    Results results(call.outputs);
    begin(Operation::kGather, call.input, call.root);
    bytes.gather(bytes_of_dense(input), results.bytes(), call.root);
    results.write_back();
  }

  void operator()(const Scatter& call) const {
    Result result(call.output);
    const Inputs parts(call.inputs);
    begin(Operation::kScatter, call.output, call.root);
    bytes.scatter(result.bytes(), parts.bytes(), call.root);
    result.write_back();
  }

  void operator()(const ReduceScatter& call) const {
    if (!are_equally_long(call.inputs)) return reduce_each(call);
    Result result(call.output);
    Tensors inputs = call.inputs;
    if (is_premul(call.op)) {
      for (auto& input : inputs) input = scaled(input, call.op);
    }
    const Inputs parts(inputs);
    const Reduction reduction =
        tree_reduction(call.output.scalar_type(), call.op.op_);
    begin(Operation::kReduceScatter, call.output, -1, &call.op);
    bytes.reduce_scatter(result.bytes(), parts.bytes(), reduction);
    result.write_back();
  }

  /// Reduces each part of a reduce-scatter to its rank. For parts of different
  /// sizes.
  void reduce_each(const ReduceScatter& call) const {
    for (int root = 0; root < size; ++root) {
      const at::Tensor& part = call.inputs[static_cast<size_t>(root)];
      if (rank == root) {
        copy_and_wait(call.output, part.reshape(call.output.sizes()));
      }
      (*this)(Reduce{rank == root ? call.output : part, root, call.op});
    }
  }

  void operator()(const ReduceScatterTensor& call) const {
    (*this)(ReduceScatter{call.output,
                          dense(call.input).view({-1}).tensor_split(size, 0),
                          call.op});
  }

  void operator()(const AllToAll& call) const {
    Results results(call.outputs);
    const Inputs parts(call.inputs);
    // Sizes may differ between ranks, so they are not announced.
    transport::Call announced{.operation = Operation::kAllToAll};
    announced.type =
        transport::short_text(c10::toString(call.inputs[0].scalar_type()));
    bytes.begin(announced, timeout);
    bytes.all_to_all(results.bytes(), parts.bytes());
    results.write_back();
  }

  void operator()(const Barrier&) const {
    bytes.begin({.operation = Operation::kBarrier}, timeout);
    bytes.barrier();
  }

  void operator()(const ShareMemory& call) const {
    *call.result = SharedMemory(bytes.share(call.bytes, timeout));
  }
};

// Length of an answer of the monitored barrier.
constexpr int64_t kTextBytes = 512;

// Tags of a monitored barrier. User tags are 0 and above.
struct BarrierTags {
  explicit BarrierTags(uint32_t number)
      : arrival(-2 - static_cast<int>(number % (1u << 28)) * 2),
        answer(arrival - 1) {}
  int arrival;
  int answer;
};

template <class Act>
void for_each_input(const CollectiveCall& call, const Act& act) {
  const auto visit_inputs = [&](const auto& typed) {
    if constexpr (requires { typed.tensor; }) act(typed.tensor);
    if constexpr (requires { typed.input; }) act(typed.input);
    if constexpr (requires { typed.inputs; }) {
      std::ranges::for_each(typed.inputs, act);
    }
  };
  for (const Collective& collective : call.collectives) {
    std::visit(visit_inputs, collective);
  }
}

Tensors inputs_of(const CollectiveCall& call) {
  Tensors inputs;
  for_each_input(call,
                 [&](const at::Tensor& tensor) { inputs.push_back(tensor); });
  return inputs;
}

/// Waits until this thread's streams have computed the tensors of `call`. The
/// thread that performs the call has other streams.
void finish_tensors(const CollectiveCall& call) {
  const auto finish = [](const at::Tensor& tensor) {
    if (tensor.defined()) wait_for_stream_of(tensor);
  };
  for_each_input(call, finish);
  const auto finish_outputs = [&](const auto& typed) {
    if constexpr (requires { typed.output; }) finish(typed.output);
    if constexpr (requires { typed.outputs; }) {
      std::ranges::for_each(typed.outputs, finish);
    }
  };
  for (const Collective& collective : call.collectives) {
    std::visit(finish_outputs, collective);
  }
}

at::Tensor message_with(const std::string& text) {
  at::Tensor message = torch::zeros({kTextBytes}, torch::kUInt8);
  std::memcpy(message.data_ptr(), text.data(),
              std::min<size_t>(text.size(), kTextBytes - 1));
  return message;
}

}  // namespace

HostTransport::HostTransport(std::unique_ptr<shm::P2pChannel> messages,
                             std::unique_ptr<transport::Transport> bytes,
                             int rank, int size, c10::DeviceType device_type,
                             Timeout timeout)
    : Transport(bytes->name(), CallFactory(rank, size, device_type), timeout),
      device_type_(device_type),
      messages_(std::move(messages)),
      bytes_(std::move(bytes)) {
  queue_.on_failure([this](const std::string& reason) { abort(reason); });
}

std::shared_ptr<HostTransport> HostTransport::make(
    std::unique_ptr<shm::P2pChannel> messages,
    std::unique_ptr<transport::Transport> bytes, int rank, int size,
    c10::DeviceType device_type, Timeout timeout) {
  return {new HostTransport(std::move(messages), std::move(bytes), rank, size,
                            device_type, timeout),
          [](HostTransport* transport) {
            if (transport->home().is_this_process()) delete transport;
          }};
}

void HostTransport::abort(const std::string& reason) noexcept {
  if (!home().is_this_process()) return;
  bytes_->abort(reason);
  messages_->abort(reason);
}

void HostTransport::run(const CollectiveCall& call, Timeout timeout) {
  const uint64_t number = take_number();
  // A Work and its functions cost as much as a small all-reduce. They are only
  // needed for a profiler or for a call that must wait.
  const auto task = [&] { perform(call, timeout); };
  if (!at::hasCallbacks() && queue_.run_if_idle(task)) return;
  submit(number, call, /*is_async=*/false, timeout)->wait();
}

Transport::WorkPtr HostTransport::begin(CollectiveCall call, Timeout timeout) {
  return submit(take_number(), std::move(call), /*is_async=*/true, timeout);
}

c10::intrusive_ptr<QueuedWork> HostTransport::submit(uint64_t number,
                                                     CollectiveCall call,
                                                     bool is_async,
                                                     Timeout timeout) {
  if (device_type_ != torch::kCPU) finish_tensors(call);
  ProfilerEvent event;
  if (at::hasCallbacks()) {
    event = {.title = title_of(call.type), .inputs = inputs_of(call)};
  }
  auto work = c10::make_intrusive<QueuedWork>(
      rank(), call.type, std::move(call.outputs), number, event);
  return queue_.submit(
      std::move(work),
      [this, call = std::move(call), timeout] { perform(call, timeout); },
      is_async, timeout);
}

std::string HostTransport::title_of(c10d::OpType type) const {
  return fmt::format("{}:{}", name(), function_name(type));
}

HostTransport::MessagePtr HostTransport::new_message(
    c10d::OpType type, const at::Tensor& tensor) const {
  check_home();
  ProfilerEvent event;
  if (at::hasCallbacks()) {
    event = {.title = title_of(type), .inputs = {tensor}};
  }
  return c10::make_intrusive<MessageWork>(rank(), type, tensor, event);
}

uint64_t HostTransport::take_number() {
  check_home();
  control::count_collective();
  return sequence_number_++;
}

void HostTransport::perform(const CollectiveCall& call, Timeout timeout) {
  const Perform perform{*bytes_, rank(), size(), timeout};
  for (const Collective& collective : call.collectives) {
    std::visit(perform, collective);
  }
}

Transport::WorkPtr HostTransport::send(const at::Tensor& tensor, int to,
                                       int tag) {
  calls().check_send(tensor, to, tag);
  return send_message(tensor, to, tag, timeout());
}

Transport::WorkPtr HostTransport::recv(const at::Tensor& tensor, int from,
                                       int tag) {
  calls().check_recv(tensor, from, tag);
  return receive_message(tensor, from, tag, timeout());
}

Transport::WorkPtr HostTransport::recv_any(const at::Tensor& tensor, int tag) {
  calls().check_recv_any(tensor, tag);
  auto work = new_message(c10d::OpType::RECVANYSOURCE, tensor);
  messages_->receive_any(tag, work->bytes(), timeout(), done_of(work));
  return work;
}

HostTransport::MessagePtr HostTransport::send_message(const at::Tensor& tensor,
                                                      int to, int tag,
                                                      Timeout timeout) {
  auto work = new_message(c10d::OpType::SEND, tensor);
  messages_->send(to, tag, work->bytes(), timeout, done_of(work));
  return work;
}

HostTransport::MessagePtr HostTransport::receive_message(
    const at::Tensor& tensor, int from, int tag, Timeout timeout) {
  auto work = new_message(c10d::OpType::RECV, tensor);
  messages_->receive(from, tag, work->bytes(), timeout, done_of(work));
  return work;
}

// The callbacks of the work's future run in threads of their own and not in the
// channel's thread, because they may wait for another message, which that
// thread transfers.
shm::P2pDone HostTransport::done_of(MessagePtr work) {
  return [this, work = std::move(work)](const std::exception_ptr& error,
                                        int source) {
    work->end(error, source);
    if (work->has_pending_future()) {
      callback_threads_.run([work] { work->complete_future(); });
    }
  };
}

// The barrier uses messages with tags below user tags. Each rank tells rank 0
// that it has arrived, and gets two answers: that rank 0 has arrived, and how
// the barrier ended. So every rank waits up to `timeout` for rank 0 to arrive,
// then as long again, and names the same ranks as rank 0. The number of the
// barrier is part of the tags, so that messages of an earlier barrier that
// failed are not mistaken for those of this one.
void HostTransport::monitored_barrier(Timeout timeout, bool wait_all_ranks) {
  check_home();
  const uint32_t number = monitored_barriers_++;
  if (rank() == 0) {
    wait_for_arrivals(number, timeout, wait_all_ranks);
  } else {
    arrive(number, timeout);
  }
}

void HostTransport::wait_for_arrivals(uint32_t number, Timeout timeout,
                                      bool wait_all_ranks) {
  const BarrierTags tags(number);
  std::vector<MessagePtr> arrivals, answers;
  for (int peer = 1; peer < size(); ++peer) {
    arrivals.push_back(receive_message(torch::zeros({1}, torch::kUInt8), peer,
                                       tags.arrival, timeout));
    answers.push_back(
        send_message(message_with("here"), peer, tags.answer, timeout));
  }
  std::vector<int> missing;
  std::string first_error;
  for (size_t i = 0; i < arrivals.size(); ++i) {
    try {
      arrivals[i]->wait();
    } catch (const CommError& error) {
      if (missing.empty()) first_error = text_of(error);
      missing.push_back(static_cast<int>(i) + 1);
      if (!wait_all_ranks) break;
    }
  }
  std::string what;
  if (!missing.empty()) {
    what = fmt::format(
        "Rank{} {} failed to pass monitoredBarrier in {} ms: timed out, or "
        "ended",
        missing.size() == 1 ? "" : "s", fmt::join(missing, ", "),
        timeout.count());
  }
  // A rank that is late finds the answer when it arrives.
  for (int peer = 1; peer < size(); ++peer) {
    answers.push_back(
        send_message(message_with(what), peer, tags.answer, timeout));
  }
  if (missing.empty()) {
    for (const auto& answer : answers) answer->wait();
    return;
  }
  throw CommError({.code = ErrorCode::kCollectiveFailed,
                   .what = what,
                   .got = first_error,
                   .fix = "look at what those ranks do"});
}

void HostTransport::arrive(uint32_t number, Timeout timeout) {
  const BarrierTags tags(number);
  const at::Tensor answer = torch::zeros({kTextBytes}, torch::kUInt8);
  try {
    send_message(torch::ones({1}, torch::kUInt8), 0, tags.arrival, timeout)
        ->wait();
    receive_message(answer, 0, tags.answer, timeout)->wait();
    receive_message(answer, 0, tags.answer, timeout)->wait();
  } catch (const CommError& error) {
    throw CommError(
        {.code = ErrorCode::kCollectiveFailed,
         .what = fmt::format("rank {} came to monitoredBarrier, but rank 0 did "
                             "not answer: timed out, or ended",
                             rank()),
         .got = text_of(error),
         .fix = "look at rank 0's own output"});
  }
  const std::string failure(static_cast<const char*>(answer.const_data_ptr()));
  if (failure.empty()) return;
  throw CommError({.code = ErrorCode::kCollectiveFailed,
                   .what = fmt::format("rank 0 says: {}", failure),
                   .fix = "look at what those ranks do"});
}

}  // namespace lockstep
