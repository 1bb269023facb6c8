#include "lockstep/comm/host_backend.h"

#include <algorithm>
#include <exception>
#include <map>
#include <thread>
#include <unistd.h>
#include <utility>

#include <ATen/record_function.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/dense.h"
#include "lockstep/comm/moves.h"
#include "lockstep/comm/sparse_all_reduce.h"
#include "lockstep/control/worker_side.h"

namespace lockstep {

using c10d::OpType;

namespace {

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
      {SEND, "send"},
      {RECV, "recv"},
      {RECVANYSOURCE, "recvAnySource"}};
  const auto title = titles.find(type);
  return title == titles.end() ? "collective" : title->second;
}

// The keys of a monitored barrier in the store.
std::string key_of_rank(uint32_t number, int rank) {
  return fmt::format("monitored barrier {}, rank {}", number, rank);
}
std::string key_of_answer(uint32_t number) {
  return fmt::format("monitored barrier {}, answer", number);
}

/// Waits until this thread's streams have computed the tensors. The thread that
/// performs their call has other streams.
void finish(at::TensorList tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) wait_for_stream_of(tensor);
  }
}

/// Returns the function that the channel calls at the end of a message. It
/// keeps the work alive until then.
tcp::MessageDone done_of(c10::intrusive_ptr<MessageWork> work) {
  return [work = std::move(work)](const std::exception_ptr& error, int source) {
    work->end(error, source);
  };
}

}  // namespace

HostBackend::HostBackend(std::unique_ptr<transport::Transport> bytes,
                         tcp::Door door, c10::intrusive_ptr<c10d::Store> store,
                         int rank, int size,
                         std::optional<c10::DeviceType> device_type,
                         Timeout timeout)
    : TorchBackend(rank, size),
      device_type_(device_type),
      name_(bytes->name()),
      timeout_(timeout),
      store_(std::move(store)),
      bytes_(std::move(bytes)),
      messages_(size == 1 ? nullptr
                          : std::make_unique<tcp::Channel>(
                                rank, size, std::move(door), *bytes_)),
      queue_(std::make_unique<WorkQueue>()) {
  queue_->on_failure([this](const std::string& reason) { give_up(reason); });
}

HostBackend::~HostBackend() {
  if (!home_.is_this_process()) {
    static_cast<void>(queue_.release());
    static_cast<void>(messages_.release());
    static_cast<void>(bytes_.release());
    return;
  }
  const auto end = [this] {
    queue_.reset();
    messages_.reset();
    bytes_.reset();
  };
  around_end_ ? around_end_(end) : end();
}

void HostBackend::check_home() const {
  if (home_.is_this_process()) return;
  throw CommError(
      {.code = ErrorCode::kCollectiveFailed,
       .what = fmt::format("process {} uses the process group of rank {}, from "
                           "whose process it was forked",
                           ::getpid(), getRank()),
       .expected = fmt::format("process {}", home_.pid()),
       .fix = "communicate only in the rank's process; or start the child "
              "without fork(), and let it make its own process group"});
}

void HostBackend::give_up(const std::string& reason) noexcept {
  if (!home_.is_this_process()) return;
  bytes_->abort(reason);
  if (messages_) messages_->abort(reason);
}

c10::intrusive_ptr<c10d::Backend::Options> HostBackend::getBackendOptions() {
  return c10::make_intrusive<Options>(name_, timeout_.load());
}

c10::intrusive_ptr<c10d::Backend> HostBackend::split(
    const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
    const c10::intrusive_ptr<Options>& options) {
  const auto own = std::ranges::find(ranks, getRank());
  if (!connect_ || own == ranks.end()) return nullptr;
  return connect_(store->clone(), static_cast<int>(own - ranks.begin()),
                  static_cast<int>(ranks.size()),
                  options ? options->timeout : timeout_.load());
}

std::string HostBackend::title_of(OpType type) const {
  return fmt::format("{}:{}", name_, function_name(type));
}

uint64_t HostBackend::take_number() {
  check_home();
  if (getSize() > 1) control::count_collective();
  return sequence_number_++;
}

template <class CallOptions, class Act>
HostBackend::WorkPtr HostBackend::run(OpType type, at::TensorList outputs,
                                      at::TensorList inputs,
                                      const CallOptions& options,
                                      const Act& act) {
  const uint64_t number = take_number();
  const Timeout timeout = timeout_of(options.timeout);
  // Neither a Work nor copies of the lists are made for a call that need not
  // wait: they cost as much as a small all-reduce. A profiler needs a Work.
  const bool is_async = options.asyncOp && getSize() > 1;
  const auto at_once = [&] {
    act(Moves(*bytes_, getRank(), getSize(), timeout), outputs, inputs);
  };
  if (!is_async && !at::hasCallbacks() && queue_->run_if_idle(at_once)) {
    if (!options.asyncOp) return nullptr;
    // One rank has nothing to wait for.
    auto done =
        c10::make_intrusive<QueuedWork>(getRank(), type, outputs.vec(), number);
    done->run([] {});
    return done;
  }
  if (device_type_ != torch::kCPU) {
    finish(inputs);
    finish(outputs);
  }
  ProfilerEvent event;
  if (at::hasCallbacks())
    event = {.title = title_of(type), .inputs = inputs.vec()};
  auto work = queue_->submit(
      c10::make_intrusive<QueuedWork>(getRank(), type, outputs.vec(), number,
                                      event),
      [this, act, timeout, to = outputs.vec(), from = inputs.vec()] {
        act(Moves(*bytes_, getRank(), getSize(), timeout), to, from);
      },
      is_async, timeout);
  if (is_async) return work;
  work->wait();
  return options.asyncOp ? work : nullptr;
}

bool HostBackend::can_share_memory() const {
  return device_type_.value_or(torch::kCPU) == torch::kCPU &&
         bytes_->can_share();
}

SharedMemory HostBackend::share(size_t bytes) {
  SharedMemory memory;
  c10d::BarrierOptions options;
  options.asyncOp = false;
  run(OpType::UNKNOWN, {}, {}, options,
      [&memory, bytes](const Moves& moves, at::TensorList, at::TensorList) {
        memory = SharedMemory(moves.share(bytes));
      });
  return memory;
}

at::Tensor HostBackend::allocateTensor(long size, at::TensorOptions options) {
  auto type = options.dtype().toScalarType();
  if (kComplexBucketsAreReal && c10::isComplexType(type) && size >= 0) {
    type = c10::toRealValueType(type);
    size *= 2;
  }
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

HostBackend::WorkPtr HostBackend::broadcast(
    Tensors& tensors, const c10d::BroadcastOptions& options) {
  const CallChecks check = checks("broadcast");
  const at::Tensor& tensor = check.only(tensors);
  const int64_t root = options.rootRank;
  check.root(root, options.rootTensor);
  if (getRank() == root) {
    check.input(tensor);
  } else {
    check.output(tensor);
  }
  return run(OpType::BROADCAST, tensors, tensors, options,
             [root = static_cast<int>(root)](
                 const Moves& moves, at::TensorList outputs, at::TensorList) {
               moves.broadcast(outputs[0], root);
             });
}

HostBackend::WorkPtr HostBackend::allreduce(
    Tensors& tensors, const c10d::AllreduceOptions& options) {
  const CallChecks check = checks("all_reduce");
  const at::Tensor& tensor = check.only(tensors);
  const bool is_sparse = tensor.defined() && tensor.is_sparse() &&
                         device_type_.value_or(torch::kCPU) == torch::kCPU;
  if (is_sparse) {
    check_sparse(tensor, options.reduceOp);
  } else {
    check.output(tensor);
    check.reduction(tensor, options.reduceOp);
  }
  return run(
      is_sparse ? OpType::_ALLREDUCE_SPARSE : OpType::ALLREDUCE, tensors,
      tensors, options,
      [op = options.reduceOp](const Moves& moves, at::TensorList to,
                              at::TensorList) { moves.all_reduce(to[0], op); });
}

HostBackend::WorkPtr HostBackend::allreduce_sparse(
    Tensors& tensors, const c10d::AllreduceOptions& options) {
  check_sparse(checks("allreduce_sparse").only(tensors), options.reduceOp);
  return allreduce(tensors, options);
}

HostBackend::WorkPtr HostBackend::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  const CallChecks check = checks("allreduce_coalesced");
  check.coalesced(tensors);
  check.outputs(tensors);
  check.reduction(tensors[0], options.reduceOp);
  return run(OpType::ALLREDUCE_COALESCED, tensors, tensors, options,
             [op = options.reduceOp](const Moves& moves, at::TensorList to,
                                     at::TensorList) {
               for (const auto& tensor : to) moves.all_reduce(tensor, op);
             });
}

HostBackend::WorkPtr HostBackend::reduce(Tensors& tensors,
                                         const c10d::ReduceOptions& options) {
  const CallChecks check = checks("reduce");
  const at::Tensor& tensor = check.only(tensors);
  check.root(options.rootRank, options.rootTensor);
  check.output(tensor);
  check.reduction(tensor, options.reduceOp);
  return run(OpType::REDUCE, tensors, tensors, options,
             [root = static_cast<int>(options.rootRank), op = options.reduceOp](
                 const Moves& moves, at::TensorList outputs, at::TensorList) {
               moves.reduce(outputs[0], root, op);
             });
}

HostBackend::WorkPtr HostBackend::allgather(
    Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  const CallChecks check = checks("all_gather");
  const Tensors& parts = check.only(outputs);
  const at::Tensor& input = check.only(inputs);
  check.input(input);
  check.outputs(parts);
  check.parts(parts, input);
  return run(OpType::ALLGATHER, parts, inputs, options,
             [](const Moves& moves, at::TensorList to, at::TensorList from) {
               moves.all_gather(to, from[0]);
             });
}

HostBackend::WorkPtr HostBackend::all_gather_into(
    at::TensorList outputs, at::TensorList inputs,
    const c10d::AllgatherOptions& options) {
  const CallChecks check = checks("all_gather_into_tensor");
  check.same_count("an output for each input", inputs.size(), outputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    check.input(inputs[i]);
    check.output(outputs[i]);
    check.whole(outputs[i], inputs[i]);
  }
  return run(OpType::_ALLGATHER_BASE, outputs, inputs, options,
             [](const Moves& moves, at::TensorList to, at::TensorList from) {
               for (size_t i = 0; i < from.size(); ++i) {
                 moves.all_gather_into_tensor(to[i], from[i]);
               }
             });
}

HostBackend::WorkPtr HostBackend::_allgather_base(
    at::Tensor& output, at::Tensor& input,
    const c10d::AllgatherOptions& options) {
  return all_gather_into(output, input, options);
}

HostBackend::WorkPtr HostBackend::allgather_coalesced(
    Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  const CallChecks check = checks("allgather_coalesced");
  check.inputs(inputs);
  check.same_count("a list for each rank", static_cast<size_t>(getSize()),
                   outputs.size());
  // outputs[rank][i] gets inputs[i] of that rank.
  Lists parts(inputs.size());
  for (const auto& rank_outputs : outputs) {
    check.same_count("an output for each input", inputs.size(),
                     rank_outputs.size());
    check.outputs(rank_outputs);
    for (size_t i = 0; i < inputs.size(); ++i) {
      parts[i].push_back(rank_outputs[i]);
    }
  }
  for (size_t i = 0; i < inputs.size(); ++i) check.parts(parts[i], inputs[i]);
  return run(OpType::ALLGATHER_COALESCED, inputs, inputs, options,
             [parts](const Moves& moves, at::TensorList, at::TensorList from) {
               for (size_t i = 0; i < from.size(); ++i) {
                 moves.all_gather(parts[i], from[i]);
               }
             });
}

HostBackend::WorkPtr HostBackend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  return all_gather_into(outputs, inputs, options);
}

HostBackend::WorkPtr HostBackend::gather(Lists& outputs, Tensors& inputs,
                                         const c10d::GatherOptions& options) {
  const CallChecks check = checks("gather");
  check.root(options.rootRank);
  const at::Tensor& input = check.only(inputs);
  const Tensors& parts = check.only_at_root(outputs, options.rootRank);
  check.input(input);
  check.outputs(parts);
  if (getRank() == options.rootRank) check.parts(parts, input);
  return run(OpType::GATHER, parts, inputs, options,
             [root = static_cast<int>(options.rootRank)](
                 const Moves& moves, at::TensorList to, at::TensorList from) {
               moves.gather(to, from[0], root);
             });
}

HostBackend::WorkPtr HostBackend::scatter(Tensors& outputs, Lists& inputs,
                                          const c10d::ScatterOptions& options) {
  const CallChecks check = checks("scatter");
  check.root(options.rootRank);
  const at::Tensor& output = check.only(outputs);
  const Tensors& parts = check.only_at_root(inputs, options.rootRank);
  check.output(output);
  if (getRank() == options.rootRank) {
    check.inputs(parts);
    check.parts(parts, output);
  }
  return run(OpType::SCATTER, outputs, parts, options,
             [root = static_cast<int>(options.rootRank)](
                 const Moves& moves, at::TensorList to, at::TensorList from) {
               moves.scatter(to[0], from, root);
             });
}

HostBackend::WorkPtr HostBackend::reduce_scatter(
    Tensors& outputs, Lists& inputs,
    const c10d::ReduceScatterOptions& options) {
  const CallChecks check = checks("reduce_scatter");
  const at::Tensor& output = check.only(outputs);
  const Tensors& parts = check.only(inputs);
  check.output(output);
  check.inputs(parts);
  check.same_count("an input for each rank", static_cast<size_t>(getSize()),
                   parts.size());
  for (const auto& part : parts) check.same_type(part, output);
  check.same_size(output, parts[static_cast<size_t>(getRank())]);
  check.reduction(output, options.reduceOp);
  return run(OpType::REDUCE_SCATTER, outputs, parts, options,
             [op = options.reduceOp](const Moves& moves, at::TensorList to,
                                     at::TensorList from) {
               moves.reduce_scatter(to[0], from, op);
             });
}

HostBackend::WorkPtr HostBackend::reduce_scatter_from(
    at::TensorList outputs, at::TensorList inputs,
    const c10d::ReduceScatterOptions& options) {
  const CallChecks check = checks("reduce_scatter_tensor");
  check.same_count("an input for each output", outputs.size(), inputs.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    check.output(outputs[i]);
    check.input(inputs[i]);
    check.whole(inputs[i], outputs[i]);
    check.reduction(outputs[i], options.reduceOp);
  }
  return run(OpType::_REDUCE_SCATTER_BASE, outputs, inputs, options,
             [op = options.reduceOp](const Moves& moves, at::TensorList to,
                                     at::TensorList from) {
               for (size_t i = 0; i < to.size(); ++i) {
                 moves.reduce_scatter_tensor(to[i], from[i], op);
               }
             });
}

HostBackend::WorkPtr HostBackend::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input,
    const c10d::ReduceScatterOptions& options) {
  return reduce_scatter_from(output, input, options);
}

HostBackend::WorkPtr HostBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs,
    const c10d::ReduceScatterOptions& options) {
  return reduce_scatter_from(outputs, inputs, options);
}

HostBackend::WorkPtr HostBackend::alltoall(
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
  const auto own = static_cast<size_t>(getRank());
  check.same_size(outputs[own], inputs[own]);
  return run(OpType::ALLTOALL, outputs, inputs, options,
             [](const Moves& moves, at::TensorList to, at::TensorList from) {
               moves.all_to_all(to, from);
             });
}

HostBackend::WorkPtr HostBackend::alltoall_base(
    at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
    std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) {
  const CallChecks check = checks("all_to_all_single");
  check.output(output);
  check.input(input);
  check.same_type(output, input);
  check.splits(output, output_splits);
  check.splits(input, input_splits);
  const auto cut = [&](const at::Tensor& tensor,
                       const std::vector<int64_t>& splits) {
    return splits.empty() ? tensor.tensor_split(getSize(), 0)
                          : tensor.split_with_sizes(splits, 0);
  };
  return run(OpType::ALLTOALL_BASE, output, input, options,
             [to = cut(output, output_splits), from = cut(input, input_splits)](
                 const Moves& moves, at::TensorList, at::TensorList) {
               moves.all_to_all(to, from);
             });
}

HostBackend::WorkPtr HostBackend::barrier(const c10d::BarrierOptions& options) {
  return run(OpType::BARRIER, {}, {}, options,
             [](const Moves& moves, at::TensorList, at::TensorList) {
               moves.barrier();
             });
}

HostBackend::WorkPtr HostBackend::send(Tensors& tensors, int to, int tag) {
  const CallChecks check = checks("send");
  const at::Tensor& tensor = check.only(tensors);
  check.peer(to);
  check.tag(tag);
  check.input(tensor);
  auto work = new_message(OpType::SEND, tensor);
  messages().send(to, tag, work->bytes(), timeout_, done_of(work));
  return work;
}

HostBackend::WorkPtr HostBackend::recv(Tensors& tensors, int from, int tag) {
  const CallChecks check = checks("recv");
  const at::Tensor& tensor = check.only(tensors);
  check.peer(from);
  check.tag(tag);
  check.output(tensor);
  return receive(OpType::RECV, tensor, from, tag);
}

HostBackend::WorkPtr HostBackend::recvAnysource(Tensors& tensors, int tag) {
  const CallChecks check = checks("recv");
  const at::Tensor& tensor = check.only(tensors);
  check.tag(tag);
  check.output(tensor);
  return receive(OpType::RECVANYSOURCE, tensor, tcp::kAnySource, tag);
}

HostBackend::WorkPtr HostBackend::receive(OpType type, const at::Tensor& tensor,
                                          int from, int tag) {
  auto work = new_message(type, tensor);
  messages().receive(from, tag, work->bytes(), timeout_, done_of(work));
  return work;
}

tcp::Channel& HostBackend::messages() const {
  if (messages_) return *messages_;
  throw InvalidArgument("comm",
                        {.code = ErrorCode::kBadRank,
                         .what = "there is no rank to send to or receive from",
                         .expected = "a world of at least 2"});
}

HostBackend::MessagePtr HostBackend::new_message(
    OpType type, const at::Tensor& tensor) const {
  check_home();
  ProfilerEvent event;
  if (at::hasCallbacks()) {
    event = {.title = title_of(type), .inputs = {tensor}};
  }
  return c10::make_intrusive<MessageWork>(getRank(), type, tensor, event);
}

// Each rank sets a key of the store when it arrives, and rank 0 sets one that
// says how the barrier ended. So every rank waits up to `timeout` for rank 0 to
// arrive, then as long again, and names the same ranks as rank 0. A rank that
// is late finds the answer. The number of the barrier is part of the keys.
void HostBackend::monitoredBarrier(const c10d::BarrierOptions& options,
                                   bool wait_all_ranks) {
  check_home();
  if (getSize() == 1) return;
  const Timeout timeout = timeout_of(options.timeout);
  const uint32_t number = monitored_barriers_++;
  store_->set(key_of_rank(number, getRank()), std::string("here"));
  if (getRank() == 0) {
    wait_for_arrivals(number, timeout, wait_all_ranks);
  } else {
    arrive(number, timeout);
  }
}

bool HostBackend::has_set(
    int peer, const std::string& key,
    std::chrono::steady_clock::time_point deadline) const {
  constexpr Timeout kLongestPause{50};
  for (Timeout pause{1};; pause = std::min(2 * pause, kLongestPause)) {
    // In this order, because a rank may set the key and end.
    const bool is_over = std::chrono::steady_clock::now() >= deadline ||
                         bytes_->end_of(peer).has_value();
    if (store_->check({key})) return true;
    if (is_over) return false;
    std::this_thread::sleep_for(pause);
  }
}

void HostBackend::wait_for_arrivals(uint32_t number, Timeout timeout,
                                    bool wait_all_ranks) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  std::vector<int> missing;
  std::string whereabouts;
  for (int peer = 1; peer < getSize(); ++peer) {
    if (has_set(peer, key_of_rank(number, peer), deadline)) continue;
    if (missing.empty()) whereabouts = bytes_->state_of(peer);
    missing.push_back(peer);
    if (!wait_all_ranks) break;
  }
  std::string what;
  if (!missing.empty()) {
    what = fmt::format(
        "Rank{} {} failed to pass monitoredBarrier in {} ms: timed out, or "
        "ended",
        missing.size() == 1 ? "" : "s", fmt::join(missing, ", "),
        timeout.count());
  }
  store_->set(key_of_answer(number), what);
  if (missing.empty()) {
    // All ranks have come here, and need nothing of the barrier before.
    for (int peer = 0; number > 0 && peer < getSize(); ++peer) {
      store_->deleteKey(key_of_rank(number - 1, peer));
    }
    if (number > 0) store_->deleteKey(key_of_answer(number - 1));
    return;
  }
  throw CommError({.code = ErrorCode::kCollectiveFailed,
                   .what = what,
                   .got = whereabouts,
                   .fix = "look at what those ranks do"});
}

void HostBackend::arrive(uint32_t number, Timeout timeout) {
  for (const std::string& key :
       {key_of_rank(number, 0), key_of_answer(number)}) {
    if (has_set(0, key, std::chrono::steady_clock::now() + timeout)) continue;
    throw CommError(
        {.code = ErrorCode::kCollectiveFailed,
         .what = fmt::format("rank {} came to monitoredBarrier, but rank 0 did "
                             "not answer: timed out, or ended",
                             getRank()),
         .got = bytes_->state_of(0),
         .fix = "look at rank 0's own output"});
  }
  const std::string failure = store_->get_to_str(key_of_answer(number));
  if (failure.empty()) return;
  throw CommError({.code = ErrorCode::kCollectiveFailed,
                   .what = fmt::format("rank 0 says: {}", failure),
                   .fix = "look at what those ranks do"});
}

}  // namespace lockstep
