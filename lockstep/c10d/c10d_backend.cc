#include "lockstep/c10d/c10d_backend.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/c10d/torch_backend.h"
#include "lockstep/comm/transport/device_transport.h"
#include "lockstep/comm/transport/queued_work.h"
#include "lockstep/comm/transport/sparse_all_reduce.h"

namespace lockstep {
namespace {

using c10d::OpType;

/// The calls between startCoalescing() and endCoalescing(), such as the
/// messages of batch_isend_irecv(). Done when all of them are done.
class CoalescedWork : public c10d::Work {
 public:
  using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;

  CoalescedWork(int rank, Works works)
      : Work(rank, OpType::COALESCED), works_(std::move(works)) {}

  bool isCompleted() override {
    return std::ranges::all_of(
        works_, [](const auto& work) { return work->isCompleted(); });
  }
  bool isSuccess() const override {
    return std::ranges::all_of(
        works_, [](const auto& work) { return work->isSuccess(); });
  }
  std::exception_ptr exception() const override { return first_error(works_); }
  /// Returns the number of the collective, which is the last of the calls.
  uint64_t getSequencenumber() const override {
    return works_.back()->getSequencenumber();
  }

  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override {
    using std::chrono::milliseconds;
    const auto begin = std::chrono::steady_clock::now();
    const auto left = [&] {
      if (timeout == kNoTimeout) return timeout;
      return std::max(milliseconds(1),
                      timeout - std::chrono::duration_cast<milliseconds>(
                                    std::chrono::steady_clock::now() - begin));
    };
    for (const auto& work : works_) work->wait(left());
    return true;
  }

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    const auto type = c10::ListType::create(c10::TensorType::get());
    c10::List<c10::intrusive_ptr<c10::ivalue::Future>> futures(
        c10::FutureType::create(type));
    for (const auto& work : works_) futures.push_back(work->getFuture());
    return c10::collectAll(futures)->then(
        [works = works_](c10::ivalue::Future&) -> c10::IValue {
          if (const auto error = first_error(works)) {
            std::rethrow_exception(error);
          }
          return std::vector<at::Tensor>();
        },
        type);
  }

 private:
  static std::exception_ptr first_error(const Works& works) {
    for (const auto& work : works) {
      if (auto error = work->exception()) return error;
    }
    return nullptr;
  }

  const Works works_;
};

/// A c10d backend whose calls are those of a ProcessGroup over shm or tcp. Its
/// calls and those of the ProcessGroup go through one queue, in the order in
/// which they are made.
class C10dBackend : public TorchBackend {
 public:
  using Work = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;
  using Lists = std::vector<Tensors>;

  C10dBackend(std::shared_ptr<Transport> transport, MakeBackend make)
      : TorchBackend(transport->rank(), transport->size()),
        transport_(std::move(transport)),
        make_(std::move(make)) {}

  const std::string getBackendName() const override {
    return transport_->name();
  }

  c10::intrusive_ptr<Options> getBackendOptions() override {
    return c10::make_intrusive<Options>(getBackendName(),
                                        transport_->timeout());
  }

  bool supportsSplitting() const override { return make_ != nullptr; }

  /// Returns the backend of the ranks of this group that are in `ranks`, in
  /// that order, or null on other ranks.
  c10::intrusive_ptr<Backend> split(
      const c10::intrusive_ptr<c10d::Store>& store,
      const std::vector<int>& ranks,
      const c10::intrusive_ptr<Options>& options) override {
    const auto own = std::ranges::find(ranks, getRank());
    if (!make_ || own == ranks.end()) return nullptr;
    return make_(store->clone(), static_cast<int>(own - ranks.begin()),
                 static_cast<int>(ranks.size()),
                 options ? options->timeout : transport_->timeout());
  }

  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override { messages_.emplace(); }

  Work endCoalescing() override {
    CoalescedWork::Works works;
    if (messages_) works.swap(*messages_);
    messages_.reset();
    // Collectives complete in order, so all are done when the last one is.
    works.push_back(submit({.type = OpType::COALESCED}, /*is_async=*/true,
                           transport_->timeout()));
    return c10::make_intrusive<CoalescedWork>(getRank(), std::move(works));
  }

  void setTimeout(std::chrono::milliseconds timeout) override {
    transport_->set_timeout(timeout);
  }

  // Number of the next collective. Each rank counts its collectives from 0.
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override {
    return transport_->sequence_number();
  }

  /// Allocates a tensor that all_reduce() does not have to copy, if the ranks
  /// share memory. Collective: c10d's Reducer calls it on all ranks with the
  /// same size.
  at::Tensor allocateTensor(long size, at::TensorOptions options) override {
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
    return transport_->share(bytes).tensor(getRank(), 0, {size}, type);
  }

  /// `device` is -1 for the CPU. The same group may use NCCL for GPUs.
  bool supportsTensorAlloc(c10::DeviceIndex device) override {
    return device < 0 && transport_->can_share_memory();
  }

  Work broadcast(Tensors& tensors,
                 const c10d::BroadcastOptions& options) override {
    const CallChecks check = checks("broadcast");
    const at::Tensor tensor = check.only(tensors);
    check.root(options.rootRank, options.rootTensor);
    return submit(calls().broadcast(tensor, options.rootRank), options);
  }

  /// Takes one dense tensor, or one sparse tensor (COO), which can be summed
  /// and averaged.
  Work allreduce(Tensors& tensors,
                 const c10d::AllreduceOptions& options) override {
    const at::Tensor tensor = checks("all_reduce").only(tensors);
    return submit(calls().all_reduce(tensor, options.reduceOp), options);
  }

  Work allreduce_sparse(Tensors& tensors,
                        const c10d::AllreduceOptions& options) override {
    const at::Tensor tensor = checks("allreduce_sparse").only(tensors);
    check_sparse(tensor, options.reduceOp);
    return submit(calls().all_reduce(tensor, options.reduceOp), options);
  }

  /// Reduces one tensor after another.
  Work allreduce_coalesced(
      Tensors& tensors,
      const c10d::AllreduceCoalescedOptions& options) override {
    const CallChecks check = checks("allreduce_coalesced");
    check.coalesced(tensors);
    check.outputs(tensors);
    check.reduction(tensors[0], options.reduceOp);
    CollectiveCall call{.type = OpType::ALLREDUCE_COALESCED,
                        .outputs = tensors};
    for (const auto& tensor : tensors) {
      call.collectives.emplace_back(AllReduce{tensor, options.reduceOp});
    }
    return submit(std::move(call), options);
  }

  Work reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    const CallChecks check = checks("reduce");
    const at::Tensor tensor = check.only(tensors);
    check.root(options.rootRank, options.rootTensor);
    return submit(calls().reduce(tensor, options.rootRank, options.reduceOp),
                  options);
  }

  Work allgather(Lists& outputs, Tensors& inputs,
                 const c10d::AllgatherOptions& options) override {
    const CallChecks check = checks("all_gather");
    return submit(calls().all_gather(check.only(outputs), check.only(inputs)),
                  options);
  }

  Work _allgather_base(at::Tensor& output, at::Tensor& input,
                       const c10d::AllgatherOptions& options) override {
    Tensors outputs{output}, inputs{input};
    return allgather_into_tensor_coalesced(outputs, inputs, options);
  }

  Work allgather_coalesced(Lists& outputs, Tensors& inputs,
                           const c10d::AllgatherOptions& options) override {
    const CallChecks check = checks("allgather_coalesced");
    check.inputs(inputs);
    check.same_count("a list for each rank", static_cast<size_t>(getSize()),
                     outputs.size());
    // outputs[rank][i] gets inputs[i] of that rank.
    Lists input_lists(inputs.size());
    for (const auto& rank_outputs : outputs) {
      check.same_count("an output for each input", inputs.size(),
                       rank_outputs.size());
      check.outputs(rank_outputs);
      for (size_t i = 0; i < inputs.size(); ++i) {
        input_lists[i].push_back(rank_outputs[i]);
      }
    }
    for (size_t i = 0; i < inputs.size(); ++i) {
      check.parts(input_lists[i], inputs[i]);
    }
    CollectiveCall call{.type = OpType::ALLGATHER_COALESCED, .outputs = inputs};
    for (size_t i = 0; i < inputs.size(); ++i) {
      call.collectives.push_back(AllGather{input_lists[i], inputs[i]});
    }
    return submit(std::move(call), options);
  }

  Work allgather_into_tensor_coalesced(
      Tensors& outputs, Tensors& inputs,
      const c10d::AllgatherOptions& options) override {
    checks("all_gather_into_tensor")
        .same_count("an output for each input", inputs.size(), outputs.size());
    CollectiveCall all{.type = OpType::_ALLGATHER_BASE};
    for (size_t i = 0; i < inputs.size(); ++i) {
      all.append(calls().all_gather_into_tensor(outputs[i], inputs[i]));
    }
    return submit(std::move(all), options);
  }

  Work gather(Lists& outputs, Tensors& inputs,
              const c10d::GatherOptions& options) override {
    const CallChecks check = checks("gather");
    check.root(options.rootRank);
    const at::Tensor input = check.only(inputs);
    return submit(calls().gather(check.only_at_root(outputs, options.rootRank),
                                 input, options.rootRank),
                  options);
  }

  Work scatter(Tensors& outputs, Lists& inputs,
               const c10d::ScatterOptions& options) override {
    const CallChecks check = checks("scatter");
    check.root(options.rootRank);
    const at::Tensor output = check.only(outputs);
    return submit(
        calls().scatter(output, check.only_at_root(inputs, options.rootRank),
                        options.rootRank),
        options);
  }

  Work reduce_scatter(Tensors& outputs, Lists& inputs,
                      const c10d::ReduceScatterOptions& options) override {
    const CallChecks check = checks("reduce_scatter");
    return submit(calls().reduce_scatter(check.only(outputs),
                                         check.only(inputs), options.reduceOp),
                  options);
  }

  Work _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input,
      const c10d::ReduceScatterOptions& options) override {
    Tensors outputs{output}, inputs{input};
    return reduce_scatter_tensor_coalesced(outputs, inputs, options);
  }

  Work reduce_scatter_tensor_coalesced(
      Tensors& outputs, Tensors& inputs,
      const c10d::ReduceScatterOptions& options) override {
    checks("reduce_scatter_tensor")
        .same_count("an input for each output", outputs.size(), inputs.size());
    CollectiveCall all{.type = OpType::_REDUCE_SCATTER_BASE};
    for (size_t i = 0; i < outputs.size(); ++i) {
      all.append(calls().reduce_scatter_tensor(outputs[i], inputs[i],
                                               options.reduceOp));
    }
    return submit(std::move(all), options);
  }

  Work alltoall_base(at::Tensor& output, at::Tensor& input,
                     std::vector<int64_t>& output_splits,
                     std::vector<int64_t>& input_splits,
                     const c10d::AllToAllOptions& options) override {
    return submit(
        calls().all_to_all_single(output, input, output_splits, input_splits),
        options);
  }

  Work alltoall(Tensors& outputs, Tensors& inputs,
                const c10d::AllToAllOptions& options) override {
    return submit(calls().all_to_all(outputs, inputs), options);
  }

  Work barrier(const c10d::BarrierOptions& options) override {
    return submit(calls().barrier(), options);
  }

  // Messages do not wait for queued calls, and queued calls do not wait for
  // them.
  void monitoredBarrier(const c10d::BarrierOptions& options,
                        bool wait_all_ranks) override {
    transport_->monitored_barrier(timeout_of(options.timeout), wait_all_ranks);
  }

  Work send(Tensors& tensors, int to, int tag) override {
    return noted(transport_->send(checks("send").only(tensors), to, tag));
  }

  Work recv(Tensors& tensors, int from, int tag) override {
    return noted(transport_->recv(checks("recv").only(tensors), from, tag));
  }

  Work recvAnysource(Tensors& tensors, int tag) override {
    return noted(transport_->recv_any(checks("recv").only(tensors), tag));
  }

 private:
  using Timeout = std::chrono::milliseconds;

  const CallFactory& calls() const { return transport_->calls(); }
  CallChecks checks(const char* operation) const {
    return calls().checks(operation);
  }

  /// Adds a message to what endCoalescing() returns.
  Work noted(Work message) {
    if (messages_) messages_->push_back(message);
    return message;
  }

  Timeout timeout_of(Timeout timeout) const {
    return timeout == c10d::kUnsetTimeout ? transport_->timeout() : timeout;
  }

  /// Submits `call` with the timeout and the mode from the options.
  template <typename CallOptions>
  Work submit(CollectiveCall call, const CallOptions& options) {
    return submit(std::move(call), options.asyncOp,
                  timeout_of(options.timeout));
  }

  Work submit(CollectiveCall call, bool is_async, Timeout timeout) {
    // One rank has nothing to wait for.
    if (is_async && getSize() > 1) {
      return transport_->begin(std::move(call), timeout);
    }
    // c10d expects wait() to throw the error of a synchronous call.
    auto work = c10::make_intrusive<QueuedWork>(
        getRank(), call.type, call.outputs, transport_->sequence_number());
    work->run([&] { transport_->run(call, timeout); });
    return work;
  }

  std::shared_ptr<Transport> transport_;
  const MakeBackend make_;
  // Messages since startCoalescing().
  std::optional<CoalescedWork::Works> messages_;
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> c10d_backend(const ProcessGroup& group) {
  return group.size() == 1 ? nullptr : c10d_backend(group.transport());
}

c10::intrusive_ptr<c10d::Backend> c10d_backend(
    const std::shared_ptr<Transport>& transport, MakeBackend make) {
  if (const auto* device = dynamic_cast<DeviceTransport*>(transport.get())) {
    return device->backend();
  }
  return c10::make_intrusive<C10dBackend>(transport, std::move(make));
}

}  // namespace lockstep
